; The uninstaller: deletes the files of its own list, and folders only when they are empty.
;   /S         no questions           /PURGE   also models, settings, keys and logs
;   /FILESONLY keeps what is registered: the program has moved to another folder

Var Purge
Var FilesOnly
Var Undeleted
Var PurgeBox

Function un.onInit
  Call un.ChooseLanguage
  StrCpy $Purge 0
  StrCpy $FilesOnly 0
  StrCpy $Undeleted 0
  ${GetParameters} $R0
  ClearErrors
  ${GetOptions} $R0 "/PURGE" $R1
  ${IfNot} ${Errors}
    StrCpy $Purge 1
  ${EndIf}
  ClearErrors
  ${GetOptions} $R0 "/FILESONLY" $R1
  ${IfNot} ${Errors}
    StrCpy $FilesOnly 1
  ${EndIf}
FunctionEnd

Function un.OptionsShow
  !insertmacro MUI_HEADER_TEXT "$(UN_OPTIONS_TITLE)" "$(UN_OPTIONS_SUBTITLE)"
  nsDialogs::Create 1018
  Pop $0
  ${NSD_CreateLabel} 0 0 100% 30u "$(UN_KEEPS)"
  Pop $0
  ${NSD_CreateCheckbox} 0 36u 100% 12u "$(UN_PURGE)"
  Pop $PurgeBox
  ${If} $Purge = 1
    ${NSD_Check} $PurgeBox
  ${EndIf}
  nsDialogs::Show
FunctionEnd

Function un.OptionsLeave
  ${NSD_GetState} $PurgeBox $Purge
FunctionEnd

; A file of the list. One that is not there any more is no fault, one that cannot be deleted is.
!macro RemoveFile Path
  ClearErrors
  Delete "$INSTDIR\${Path}"
  ${If} ${Errors}
    IntOp $Undeleted $Undeleted + 1
  ${EndIf}
!macroend

!macro RemoveFolder Path
  RMDir "$INSTDIR\${Path}"
!macroend

Section "Uninstall"
  ask:
  Push $INSTDIR
  Call un.StopCopy
  Pop $0
  ${If} $0 = 1
    MessageBox MB_RETRYCANCEL|MB_ICONEXCLAMATION "$(STILL_RUNNING)" /SD IDCANCEL IDRETRY ask
    Push "$(STILL_RUNNING)"
    Push ${E_RUNNING}
    Call un.Fail
  ${EndIf}
  ${If} $Purge = 1
    DetailPrint "$(UN_PURGING)"
    ; The program deletes what is its own: it knows long paths, and does not follow links out of its folders.
    nsExec::ExecToStack /TIMEOUT=600000 '"$INSTDIR\${CLI}" purge'
    Pop $0
    Pop $1
    DetailPrint "$1"
    ${If} $0 != 0
      IntOp $Undeleted $Undeleted + 1
    ${EndIf}
  ${EndIf}

  DetailPrint "$(UN_DELETING)"
  SetDetailsPrint none
  SetOutPath "$TEMP"
  !insertmacro RemoveFiles
  !insertmacro DropOwn ".appliance-old"
  !insertmacro DropOwn ".appliance-new"
  !insertmacro DropOwn ".appliance-gone"
  SetDetailsPrint both
  ${If} $Undeleted > 0
    ; What is registered stays, so that it can be tried again.
    Push "$(UN_LEFT)"
    Push ${E_FILES}
    Call un.Fail
  ${EndIf}
  Call un.RemoveSelf
  RMDir "$INSTDIR"
  RMDir "$LOCALAPPDATA\Programs" ; the set-up may have made it
  ${If} $FilesOnly = 0
    Call un.Unregister
  ${EndIf}
SectionEnd

; Started with _?= this is the uninstaller itself and no copy of it: it cannot be deleted before it has ended.
Function un.RemoveSelf
  ${If} $EXEDIR != $INSTDIR
    Delete "$INSTDIR\uninstall.exe"
    Return
  ${EndIf}
  ; The paths go by the environment, where no letter of them has a meaning. Folders: only if they are empty. Once and
  ; soon: a new installation may follow.
  StrCpy $1 "$INSTDIR\uninstall.exe"
  System::Call 'kernel32::SetEnvironmentVariable(t "APPLIANCE_LEFT", t r1)'
  System::Call 'kernel32::SetEnvironmentVariable(t "APPLIANCE_FOLDER", t "$INSTDIR")'
  System::Call 'kernel32::SetEnvironmentVariable(t "APPLIANCE_ABOVE", t "$LOCALAPPDATA\Programs")'
  StrCpy $0 'ping -n 3 127.0.0.1 & del "%APPLIANCE_LEFT%" & rmdir "%APPLIANCE_FOLDER%" & rmdir "%APPLIANCE_ABOVE%"'
  ExecShell "open" "$SYSDIR\cmd.exe" '/d /c $0' SW_HIDE
FunctionEnd

Function un.Unregister
  Delete "${MENU}\${APP}.lnk"
  Delete "${MENU}\Dashboard.url"
  Delete "${MENU}\Uninstall ${APP}.lnk"
  RMDir "${MENU}"
  DeleteRegValue HKCU "${RUN_KEY}" "${APP}"
  DeleteRegValue HKCU "${APPROVED_KEY}" "${APP}"
  DeleteRegKey HKCU "${UNINSTALL_KEY}"
  DeleteRegKey HKCU "${OWN_KEY}"
FunctionEnd
