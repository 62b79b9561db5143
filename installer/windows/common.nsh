; What set-up and uninstaller share. The uninstaller may only call functions whose name begins with "un.".

!macro Common un
  ; Say why it goes no further, with the exit code on the stack's top and the words below, and end.
  Function ${un}Fail
    Pop $0
    Pop $1
    ClearErrors
    FileOpen $2 "${LOG}" a
    ${IfNot} ${Errors}
      FileSeek $2 0 END
      FileWriteUTF16LE /BOM $2 "${VERSION}: exit code $0: $1$\r$\n"
      FileClose $2
    ${EndIf}
    MessageBox MB_OK|MB_ICONSTOP "$1" /SD IDOK
    SetErrorLevel $0
    Quit
  FunctionEnd

  ; Ask what runs from the folder on the stack's top to answer what it has and to end. Pushes 1 if it is still there,
  ; and sets $WasRunning. A program that cannot be asked is no reason to stop here: renaming will tell.
  Function ${un}StopCopy
    Pop $3
    DetailPrint "$(STOPPING)"
    ${IfNot} ${FileExists} "$3\${CLI}"
      Push 0
      Return
    ${EndIf}
    nsExec::ExecToStack /TIMEOUT=60000 '"$3\${CLI}" stop --all --timeout 30 --kill'
    Pop $0
    Pop $1
    DetailPrint "$1"
    ${StrLocate} $2 $1 "is not running"
    ${If} $2 == ""
    ${AndIf} $0 != "error"
      StrCpy $WasRunning 1
    ${EndIf}
    ${If} $0 == 1
      Push 1
    ${Else}
      Push 0
    ${EndIf}
  FunctionEnd

  ; The language: /LANG=en, de or zh; else that of the last set-up, else the system's.
  Function ${un}ChooseLanguage
    ReadRegDWORD $0 HKCU "${OWN_KEY}" "Language"
    ${If} $0 > 0
      StrCpy $LANGUAGE $0
    ${EndIf}
    ${GetParameters} $1
    ClearErrors
    ${GetOptions} $1 "/LANG=" $0
    ${IfNot} ${Errors}
      ${Switch} $0
        ${Case} "en"
          StrCpy $LANGUAGE ${LANG_ENGLISH}
          ${Break}
        ${Case} "de"
          StrCpy $LANGUAGE ${LANG_GERMAN}
          ${Break}
        ${Case} "zh"
          StrCpy $LANGUAGE ${LANG_SIMPCHINESE}
          ${Break}
        ${Default}
          Push "/LANG=$0: en, de, zh"
          Push ${E_OPTION}
          Call ${un}Fail
      ${EndSwitch}
    ${EndIf}
  FunctionEnd
!macroend

; Where NEEDLE stands in TEXT, empty if nowhere: StrStr exists once for each of the two programs.
!macro StrLocateCall Result Text Needle
  !ifdef __UNINSTALL__
    ${UnStrStr} ${Result} "${Text}" "${Needle}"
  !else
    ${StrStr} ${Result} "${Text}" "${Needle}"
  !endif
!macroend
!define StrLocate "!insertmacro StrLocateCall"

; Delete a folder that this set-up made for itself: nothing but moved program files is in it.
!macro DropOwn Name
  RMDir /r "$INSTDIR\${Name}"
!macroend

!insertmacro Common ""
!insertmacro Common "un."
