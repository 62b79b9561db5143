; The set-up program for Windows: per user, no administrator. build/windows/installer.sh calls makensis with
;   -DVERSION=1.2.3 -DFILES=<folder with files.nsh> -DOUT=<setup.exe> -DICON=… -DSIDE=… -DHEADER=… -DLICENSE=…
;   and, if wanted, -DQUICK (zlib instead of LZMA), -DSIGN=<command that takes a file> and -DCUDA (this program runs on
;   NVIDIA cards: runtime packs beside the set-up are installed)
;
; In this order: new files go into a folder beside the old ones; the running copy is asked to end; the two are swapped
; by renaming; the new program is started once to see that it runs. Whatever fails, the old one is put back.

Unicode true
Target amd64-unicode
!ifdef QUICK
  SetCompressor zlib
!else
  SetCompressor /SOLID lzma
  SetCompressorDictSize 64
!endif

!define APP "Inference Appliance"
!define MAKER "Inference Appliance contributors"
!define EXE "appliance.exe"
!define CLI "appliance-cli.exe"
!define PACKS "*-windows-x86_64.zip" ; as build/windows/make_pack.py calls them
!define URL "http://127.0.0.1:11711/"
!define OWN_KEY "Software\${APP}"
!define UNINSTALL_KEY "Software\Microsoft\Windows\CurrentVersion\Uninstall\${APP}"
!define RUN_KEY "Software\Microsoft\Windows\CurrentVersion\Run"
!define APPROVED_KEY "Software\Microsoft\Windows\CurrentVersion\Explorer\StartupApproved\Run"
!define MENU "$SMPROGRAMS\${APP}"
!define LOG "$TEMP\${APP} setup.log"

; Exit codes. docs/deploy-windows.md tells them; 0, 1 and 2 are NSIS's own: done, cancelled, ended by the script.
!define E_NEWER 3    ; a newer version is installed
!define E_RUNNING 4  ; the running copy did not end
!define E_FILES 5    ; the files could not be put in place, or the new program does not start
!define E_OPTION 6   ; an option is wrong
!define E_SYSTEM 7   ; this Windows is too old
!define E_PLACE 8    ; the folder holds another program, or its path is too long
!define E_TWO 9      ; another set-up is at work
!define E_PACK 10    ; the program is installed, the runtime pack beside the set-up is not

Name "${APP}"
BrandingText "${APP} ${VERSION}"
OutFile "${OUT}"
InstallDir "$LOCALAPPDATA\Programs\${APP}"
InstallDirRegKey HKCU "${OWN_KEY}" "InstallDir"
RequestExecutionLevel user
ManifestDPIAware true
ManifestLongPathAware true
SetDateSave off   ; same inputs, same set-up
SetOverwrite on
AllowSkipFiles off
ShowInstDetails nevershow
ShowUninstDetails nevershow

!include "MUI2.nsh"
!include "FileFunc.nsh"
!include "LogicLib.nsh"
!include "nsDialogs.nsh"
!include "StrFunc.nsh"
!include "TextFunc.nsh"
!include "WinVer.nsh"
!include "WordFunc.nsh"
!include "x64.nsh"
${StrStr}
${UnStrStr}
!insertmacro GetParameters
!insertmacro GetOptions
!insertmacro VersionCompare
!insertmacro TrimNewLines

!include "${FILES}/files.nsh"

VIProductVersion "${VERSION_4}"
VIAddVersionKey ProductName "${APP}"
VIAddVersionKey FileDescription "${APP} Setup"
VIAddVersionKey FileVersion "${VERSION}"
VIAddVersionKey ProductVersion "${VERSION}"
VIAddVersionKey CompanyName "${MAKER}"
VIAddVersionKey LegalCopyright "Apache-2.0"

!ifdef SIGN
  !finalize '${SIGN} "%1"'
  !uninstfinalize '${SIGN} "%1"'
!endif

Var Autostart   ; 0 or 1: start at login
Var Start       ; 0 or 1: start when done; silent only, a person has a box on the last page
Var Downgrade   ; 1: a newer version may be replaced
Var Before      ; folder of the installed version, empty if there is none
Var BeforeVersion
Var WasRunning  ; 1: a copy was running
Var PackFailed
Var AutostartBox

!define MUI_ICON "${ICON}"
!define MUI_UNICON "${ICON}"
!define MUI_ABORTWARNING
!define MUI_WELCOMEFINISHPAGE_BITMAP "${SIDE}"
!define MUI_UNWELCOMEFINISHPAGE_BITMAP "${SIDE}"
!define MUI_HEADERIMAGE
!define MUI_HEADERIMAGE_RIGHT
!define MUI_HEADERIMAGE_BITMAP "${HEADER}"
!define MUI_HEADERIMAGE_UNBITMAP "${HEADER}"
!define MUI_FINISHPAGE_RUN
!define MUI_FINISHPAGE_RUN_TEXT "$(START_NOW)"
!define MUI_FINISHPAGE_RUN_FUNCTION StartNow
!define MUI_FINISHPAGE_TEXT "$(DONE_TEXT)"
!define MUI_FINISHPAGE_LINK "$(DASHBOARD_LINK)"
!define MUI_FINISHPAGE_LINK_LOCATION "${URL}"

!insertmacro MUI_PAGE_WELCOME
!insertmacro MUI_PAGE_LICENSE "${LICENSE}"
!define MUI_PAGE_CUSTOMFUNCTION_LEAVE PlaceChosen
!insertmacro MUI_PAGE_DIRECTORY
Page custom OptionsShow OptionsLeave
!insertmacro MUI_PAGE_INSTFILES
!insertmacro MUI_PAGE_FINISH

!insertmacro MUI_UNPAGE_CONFIRM
UninstPage custom un.OptionsShow un.OptionsLeave
!insertmacro MUI_UNPAGE_INSTFILES
!insertmacro MUI_UNPAGE_FINISH

!insertmacro MUI_LANGUAGE "English"
!insertmacro MUI_LANGUAGE "German"
!insertmacro MUI_LANGUAGE "SimpChinese"
!include "strings.nsh"

!include "common.nsh"
!include "checks.nsh"
!include "swap.nsh"
!include "install.nsh"
!include "uninstall.nsh"
