; The old version's parts (the program folder's own entries: two programs, _internal, the uninstaller …) go into
; .appliance-old, the new ones come out of .appliance-new. Each step is a rename in the same folder. .appliance-old
; is there exactly as long as the swap is not finished: who finds it puts it back first.

; Rename $R1 to $R2. Virus scanners hold new files for moments, so for up to 10 s. Sets the error flag if it cannot.
Function Move
  Push $0
  StrCpy $0 40
  again:
    ClearErrors
    Rename "$R1" "$R2"
    IfErrors 0 done
    IntOp $0 $0 - 1
    IntCmp $0 0 give_up
    Sleep 250
    Goto again
  give_up:
    SetErrors
  done:
  Pop $0
FunctionEnd

; For each line of a list: $R0 is the part's name in BODY. LABEL makes the labels unique.
!macro EachLine List LABEL BODY
  ClearErrors
  FileOpen $R8 "${List}" r
  IfErrors ${LABEL}_end
  ${LABEL}_next:
    ClearErrors
    FileRead $R8 $R0
    IfErrors ${LABEL}_close
    ${TrimNewLines} $R0 $R0
    StrCmp $R0 "" ${LABEL}_next
    !insertmacro ${BODY} ${LABEL}
    Goto ${LABEL}_next
  ${LABEL}_close:
    FileClose $R8
  ${LABEL}_end:
!macroend

!macro MoveOut LABEL
  ${If} ${FileExists} "$INSTDIR\$R0"
    StrCpy $R1 "$INSTDIR\$R0"
    StrCpy $R2 "$INSTDIR\.appliance-old\$R0"
    Call Move
    IfErrors ${LABEL}_failed
  ${EndIf}
!macroend

!macro MoveIn LABEL
  StrCpy $R1 "$INSTDIR\.appliance-new\$R0"
  StrCpy $R2 "$INSTDIR\$R0"
  Call Move
  IfErrors ${LABEL}_failed
!macroend

!macro MoveInBack LABEL
  ${IfNot} ${FileExists} "$INSTDIR\.appliance-new\$R0"
  ${AndIf} ${FileExists} "$INSTDIR\$R0"
    StrCpy $R1 "$INSTDIR\$R0"
    StrCpy $R2 "$INSTDIR\.appliance-new\$R0"
    Call Move
  ${EndIf}
!macroend

!macro MoveOutBack LABEL
  ${If} ${FileExists} "$INSTDIR\.appliance-old\$R0"
    StrCpy $R1 "$INSTDIR\.appliance-old\$R0"
    StrCpy $R2 "$INSTDIR\$R0"
    Call Move
  ${EndIf}
!macroend

; Sets the error flag, and has put everything back, if it cannot be done.
Function Swap
  SetOutPath "$PLUGINSDIR" ; the current folder cannot be renamed
  CreateDirectory "$INSTDIR\.appliance-old"
  ; An old version's own list, else nothing is old.
  ${If} ${FileExists} "$INSTDIR\_internal\parts.txt"
    CopyFiles /SILENT "$INSTDIR\_internal\parts.txt" "$INSTDIR\.appliance-old\parts.txt"
  ${EndIf}
  !insertmacro EachLine "$INSTDIR\.appliance-old\parts.txt" out MoveOut
  !insertmacro EachLine "$INSTDIR\.appliance-new\parts.txt" in MoveIn
  ClearErrors
  Return
  out_failed:
  in_failed:
  FileClose $R8
  Call PutBack
  SetErrors
FunctionEnd

; Undo a swap that was not finished, now or by an earlier set-up that was cut off.
Function PutBack
  SetOutPath "$PLUGINSDIR"
  ${If} ${FileExists} "$INSTDIR\.appliance-new\parts.txt"
    !insertmacro EachLine "$INSTDIR\.appliance-new\parts.txt" in MoveInBack
  ${EndIf}
  ${If} ${FileExists} "$INSTDIR\.appliance-old\parts.txt"
    !insertmacro EachLine "$INSTDIR\.appliance-old\parts.txt" out MoveOutBack
    Delete "$INSTDIR\.appliance-old\parts.txt"
  ${EndIf}
  RMDir "$INSTDIR\.appliance-old"
  !insertmacro DropOwn ".appliance-new"
FunctionEnd

; The swap holds: one rename, then the old version is deleted at leisure.
Function Commit
  StrCpy $R1 "$INSTDIR\.appliance-old"
  StrCpy $R2 "$INSTDIR\.appliance-gone"
  Call Move
  !insertmacro DropOwn ".appliance-gone"
  Delete "$INSTDIR\.appliance-new\parts.txt"
  RMDir "$INSTDIR\.appliance-new"
FunctionEnd

; What an earlier set-up left when it was cut off.
Function Recover
  ${If} ${FileExists} "$INSTDIR\.appliance-old\parts.txt"
    Call PutBack
  ${EndIf}
  !insertmacro DropOwn ".appliance-gone"
  !insertmacro DropOwn ".appliance-new"
FunctionEnd
