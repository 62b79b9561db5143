; What is looked at before anything is changed.

Function .onInit
  ${IfNot} ${AtLeastWin10}
    Push "$(TOO_OLD)"
    Push ${E_SYSTEM}
    Call Fail
  ${EndIf}
  System::Call 'kernel32::CreateMutexW(p 0, i 0, w "${APP} Setup") p .r1 ?e'
  Pop $0
  ${If} $0 = 183 ; ERROR_ALREADY_EXISTS
    Push "$(TWO_SETUPS)"
    Push ${E_TWO}
    Call Fail
  ${EndIf}
  Call ChooseLanguage
  StrCpy $WasRunning 0
  StrCpy $PackFailed 0
  Call FindBefore
  Call ReadOptions
  Call CheckVersion
  ${If} ${Silent}
    Call CheckPlace
  ${EndIf}
FunctionEnd

; $Before and $BeforeVersion. A folder that is gone is none.
Function FindBefore
  ReadRegStr $Before HKCU "${OWN_KEY}" "InstallDir"
  ReadRegStr $BeforeVersion HKCU "${UNINSTALL_KEY}" "DisplayVersion"
  ${IfNot} ${FileExists} "$Before\${EXE}"
  ${AndIfNot} ${FileExists} "$Before\.appliance-old\parts.txt"
    StrCpy $Before ""
    StrCpy $BeforeVersion ""
  ${EndIf}
FunctionEnd

; One of the options that are 0 or 1: $R1 is its value, or what it was.
!macro ReadFlag Name
  ClearErrors
  ${GetOptions} $R0 "/${Name}=" $R2
  ${IfNot} ${Errors}
    ${If} $R2 != 0
    ${AndIf} $R2 != 1
      Push "/${Name}=$R2: 0, 1"
      Push ${E_OPTION}
      Call Fail
    ${EndIf}
    StrCpy $R1 $R2
  ${EndIf}
!macroend

Function ReadOptions
  ${GetParameters} $R0
  ; Start at login: as it is now; with a first installation, yes.
  StrCpy $R1 1
  ${If} $Before != ""
    ReadRegStr $R2 HKCU "${RUN_KEY}" "${APP}"
    ${If} $R2 == ""
      StrCpy $R1 0
    ${EndIf}
  ${EndIf}
  !insertmacro ReadFlag "AUTOSTART"
  StrCpy $Autostart $R1
  StrCpy $R1 "" ; unset: if a copy was running
  !insertmacro ReadFlag "START"
  StrCpy $Start $R1
  StrCpy $R1 0
  !insertmacro ReadFlag "DOWNGRADE"
  StrCpy $Downgrade $R1
FunctionEnd

Function CheckVersion
  ${If} $BeforeVersion == ""
  ${OrIf} $Downgrade = 1
    Return
  ${EndIf}
  ${VersionCompare} "$BeforeVersion" "${VERSION}" $0
  ${If} $0 = 1
    MessageBox MB_YESNO|MB_ICONEXCLAMATION|MB_DEFBUTTON2 "$(NEWER_THERE)" /SD IDNO IDYES go_on
    Push "$(NEWER_REFUSED)"
    Push ${E_NEWER}
    Call Fail
    go_on:
  ${EndIf}
FunctionEnd

Function PlaceChosen
  Call CheckPlace
FunctionEnd

!macro CountPart Name
  ${If} ${FileExists} "$INSTDIR\${Name}"
    IntOp $0 $0 + 1
  ${EndIf}
!macroend

; $INSTDIR can take the program: its longest path fits, and what has our names there is ours.
Function CheckPlace
  StrLen $0 "$INSTDIR\.appliance-new\"
  IntOp $0 $0 + ${LONGEST}
  ${If} $0 > 259
    StrCpy $1 "$(PLACE_TOO_LONG)"
    Goto refuse
  ${EndIf}
  ${If} ${FileExists} "$INSTDIR\.appliance-old\parts.txt"
    Return
  ${EndIf}
  ${If} ${FileExists} "$INSTDIR\_internal\parts.txt"
    Return
  ${EndIf}
  StrCpy $0 0
  !insertmacro EachPart CountPart
  ${If} $0 = 0
    Return
  ${EndIf}
  StrCpy $1 "$(PLACE_TAKEN)"
  refuse:
  ${IfNot} ${Silent}
    MessageBox MB_OK|MB_ICONEXCLAMATION "$1"
    Abort ; back to the page
  ${EndIf}
  Push "$1"
  Push ${E_PLACE}
  Call Fail
FunctionEnd

!ifdef CUDA
; $0: 1 if the machine has an NVIDIA card, whether or not a driver is installed.
Function HasNvidia
  SetRegView 64
  StrCpy $1 0
  next:
    EnumRegKey $2 HKLM "SYSTEM\CurrentControlSet\Enum\PCI" $1
    StrCmp $2 "" none
    IntOp $1 $1 + 1
    StrCpy $3 $2 8
    StrCmp $3 "VEN_10DE" 0 next
  StrCpy $0 1
  Return
  none:
  StrCpy $0 0
FunctionEnd
!endif
