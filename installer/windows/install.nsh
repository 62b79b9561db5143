; The options page, and the installation itself.

Function OptionsShow
  !insertmacro MUI_HEADER_TEXT "$(OPTIONS_TITLE)" "$(OPTIONS_SUBTITLE)"
  nsDialogs::Create 1018
  Pop $0
  ${NSD_CreateCheckbox} 0 0 100% 12u "$(OPTION_AUTOSTART)"
  Pop $AutostartBox
  ${If} $Autostart = 1
    ${NSD_Check} $AutostartBox
  ${EndIf}
  ${NSD_CreateLabel} 12u 13u -12u 18u "$(OPTION_AUTOSTART_WHY)"
  Pop $0
  StrCpy $R0 ""
  ${If} $Before != ""
    StrCpy $R0 "$(UPGRADE_NOTE)$\r$\n$\r$\n"
  ${EndIf}
  !ifdef CUDA
    FindFirst $1 $2 "$EXEDIR\${PACKS}"
    FindClose $1
    ${If} $2 != ""
      Call HasNvidia
      ${If} $0 = 1
        StrCpy $R0 "$R0$(PACK_NOTE)"
      ${Else}
        StrCpy $R0 "$R0$(PACK_NO_CARD)"
      ${EndIf}
    ${EndIf}
  !endif
  ${NSD_CreateLabel} 0 44u 100% 60u "$R0"
  Pop $0
  nsDialogs::Show
FunctionEnd

Function OptionsLeave
  ${NSD_GetState} $AutostartBox $Autostart
FunctionEnd

; A failure during the installation proper: clean up, start the old copy again if there was one, and end.
Function FailInstall
  Pop $0
  Pop $1
  !insertmacro DropOwn ".appliance-new"
  RMDir "$INSTDIR"
  ${If} $WasRunning = 1
    Call StartNow
  ${EndIf}
  Push $1
  Push $0
  Call Fail
FunctionEnd

Function .onInstFailed ; a file could not be written
  !insertmacro DropOwn ".appliance-new"
  RMDir "$INSTDIR"
  SetErrorLevel ${E_FILES}
FunctionEnd

Function StartNow
  SetOutPath "$PROFILE" ; the new program's current folder: not its own, which could not be renamed then
  Exec '"$INSTDIR\${EXE}"'
FunctionEnd

; What runs in the way: the copy here, and one in another folder.
Function StopAll
  ${If} $Before != ""
  ${AndIf} $Before != $INSTDIR
    Push $Before
    Call StopCopy
    Pop $0
    ${If} $0 = 1
      Push 1
      Return
    ${EndIf}
  ${EndIf}
  Push $INSTDIR
  Call StopCopy
FunctionEnd

Section "${APP}"
  Call Recover
  DetailPrint "$(COPYING)"
  SetDetailsPrint none
  !insertmacro InstallFiles "$INSTDIR\.appliance-new"
  WriteUninstaller "$INSTDIR\.appliance-new\uninstall.exe"
  SetDetailsPrint both

  ask:
  Call StopAll
  Pop $0
  ${If} $0 = 1
    MessageBox MB_RETRYCANCEL|MB_ICONEXCLAMATION "$(STILL_RUNNING)" /SD IDCANCEL IDRETRY ask
    StrCpy $WasRunning 0
    Push "$(STILL_RUNNING)"
    Push ${E_RUNNING}
    Call FailInstall
  ${EndIf}

  DetailPrint "$(SWAPPING)"
  Call Swap
  ${If} ${Errors}
    Push "$(SWAP_FAILED)"
    Push ${E_FILES}
    Call FailInstall
  ${EndIf}

  DetailPrint "$(TRYING)"
  nsExec::ExecToStack /TIMEOUT=120000 '"$INSTDIR\${CLI}" --version'
  Pop $0
  Pop $1
  ${If} $0 != 0
    Call PutBack
    Push "$(DOES_NOT_START)"
    Push ${E_FILES}
    Call FailInstall
  ${EndIf}
  Call Commit

  Call MoveFromElsewhere
  Call Register
  !ifdef CUDA
    Call Packs
  !endif
SectionEnd

; The version that was in another folder goes; what is registered is ours from here on.
Function MoveFromElsewhere
  ${If} $Before == ""
  ${OrIf} $Before == $INSTDIR
  ${OrIfNot} ${FileExists} "$Before\uninstall.exe"
    Return
  ${EndIf}
  ExecWait '"$Before\uninstall.exe" /S /FILESONLY _?=$Before'
FunctionEnd

Function Register
  SetOutPath "$PROFILE" ; the links' working folder
  CreateDirectory "${MENU}"
  CreateShortCut "${MENU}\${APP}.lnk" "$INSTDIR\${EXE}" "" "$INSTDIR\${EXE}" 0 SW_SHOWNORMAL "" "$(LINK_WORDS)"
  CreateShortCut "${MENU}\Uninstall ${APP}.lnk" "$INSTDIR\uninstall.exe"
  ; Written as UTF-16, or the icon's path would lose its letters.
  FileOpen $0 "${MENU}\Dashboard.url" w
  FileWriteUTF16LE /BOM $0 "[InternetShortcut]$\r$\nURL=${URL}$\r$\nIconFile=$INSTDIR\${EXE}$\r$\nIconIndex=0$\r$\n"
  FileClose $0

  WriteRegStr HKCU "${OWN_KEY}" "InstallDir" "$INSTDIR"
  WriteRegStr HKCU "${OWN_KEY}" "Version" "${VERSION}"
  WriteRegDWORD HKCU "${OWN_KEY}" "Language" $LANGUAGE
  ${If} $Autostart = 1
    ; An entry that is right already may have been switched off with Windows' own means: that stays so.
    ReadRegStr $0 HKCU "${RUN_KEY}" "${APP}"
    ${If} $0 != '"$INSTDIR\${EXE}" run'
      WriteRegStr HKCU "${RUN_KEY}" "${APP}" '"$INSTDIR\${EXE}" run'
      DeleteRegValue HKCU "${APPROVED_KEY}" "${APP}"
    ${EndIf}
  ${Else}
    DeleteRegValue HKCU "${RUN_KEY}" "${APP}"
  ${EndIf}

  WriteRegStr HKCU "${UNINSTALL_KEY}" "DisplayName" "${APP}"
  WriteRegStr HKCU "${UNINSTALL_KEY}" "DisplayVersion" "${VERSION}"
  WriteRegStr HKCU "${UNINSTALL_KEY}" "DisplayIcon" "$INSTDIR\${EXE}"
  WriteRegStr HKCU "${UNINSTALL_KEY}" "Publisher" "${MAKER}"
  WriteRegStr HKCU "${UNINSTALL_KEY}" "InstallLocation" "$INSTDIR"
  WriteRegStr HKCU "${UNINSTALL_KEY}" "UninstallString" '"$INSTDIR\uninstall.exe"'
  ; With _?= it waits until all is gone, and its exit code is the result's.
  WriteRegStr HKCU "${UNINSTALL_KEY}" "QuietUninstallString" '"$INSTDIR\uninstall.exe" /S _?=$INSTDIR'
  WriteRegStr HKCU "${UNINSTALL_KEY}" "Comments" "$(LINK_WORDS)"
  WriteRegDWORD HKCU "${UNINSTALL_KEY}" "EstimatedSize" ${SIZE_KB}
  WriteRegDWORD HKCU "${UNINSTALL_KEY}" "VersionMajor" ${VERSION_MAJOR}
  WriteRegDWORD HKCU "${UNINSTALL_KEY}" "VersionMinor" ${VERSION_MINOR}
  WriteRegDWORD HKCU "${UNINSTALL_KEY}" "NoModify" 1
  WriteRegDWORD HKCU "${UNINSTALL_KEY}" "NoRepair" 1
  ${GetTime} "" "L" $0 $1 $2 $3 $4 $5 $6
  WriteRegStr HKCU "${UNINSTALL_KEY}" "InstallDate" "$2$1$0"
FunctionEnd

!ifdef CUDA
; Runtime packs that lie beside the set-up, where there is a card for them.
Function Packs
  FindFirst $R5 $R6 "$EXEDIR\${PACKS}"
  next:
    StrCmp $R6 "" end
    Call HasNvidia
    StrCmp $0 1 0 end
    DetailPrint "$(PACK_INSTALLING) $R6"
    ; cuda-13.5….zip: the pack's name is what stands before the first dash
    ${WordFind} "$R6" "-" "+1" $R7
    nsExec::ExecToLog '"$INSTDIR\${CLI}" runtime install $R7 --from "$EXEDIR\$R6"'
    Pop $0
    ${If} $0 != 0
      StrCpy $PackFailed 1
      DetailPrint "$(PACK_FAILED)"
      MessageBox MB_OK|MB_ICONEXCLAMATION "$(PACK_FAILED)" /SD IDOK
    ${EndIf}
    FindNext $R5 $R6
    Goto next
  end:
  FindClose $R5
FunctionEnd
!endif

Function .onInstSuccess
  ${If} ${Silent}
    ${If} $Start == ""
      StrCpy $Start $WasRunning
    ${EndIf}
    ${If} $Start = 1
      Call StartNow
    ${EndIf}
  ${EndIf}
  ${If} $PackFailed = 1
    SetErrorLevel ${E_PACK}
  ${EndIf}
FunctionEnd
