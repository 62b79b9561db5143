; All words, in the three languages. UTF-8.

!macro Words Name En De Zh
  LangString ${Name} ${LANG_ENGLISH} "${En}"
  LangString ${Name} ${LANG_GERMAN} "${De}"
  LangString ${Name} ${LANG_SIMPCHINESE} "${Zh}"
!macroend

!insertmacro Words TOO_OLD \
  "${APP} needs Windows 10 or newer." \
  "${APP} braucht Windows 10 oder neuer." \
  "${APP} 需要 Windows 10 或更高版本。"
!insertmacro Words TWO_SETUPS \
  "Another set-up of ${APP} is at work." \
  "Es läuft schon ein Setup von ${APP}." \
  "另一个 ${APP} 安装程序正在运行。"
!insertmacro Words NEWER_THERE \
  "Version $BeforeVersion is installed. It is newer than ${VERSION}.$\r$\n$\r$\nReplace it with the older version?" \
  "Version $BeforeVersion ist installiert. Sie ist neuer als ${VERSION}.$\r$\n$\r$\nDurch die ältere Version ersetzen?" \
  "已安装版本 $BeforeVersion，比 ${VERSION} 更新。$\r$\n$\r$\n是否用较旧的版本替换？"
!insertmacro Words NEWER_REFUSED \
  "Version $BeforeVersion is installed, and stays. /DOWNGRADE=1 replaces it with ${VERSION}." \
  "Version $BeforeVersion ist installiert und bleibt. /DOWNGRADE=1 ersetzt sie durch ${VERSION}." \
  "已安装的版本 $BeforeVersion 保持不变。使用 /DOWNGRADE=1 可替换为 ${VERSION}。"
!insertmacro Words PLACE_TOO_LONG \
  "The folder's path is too long. Choose a shorter one." \
  "Der Pfad des Ordners ist zu lang. Bitte einen kürzeren wählen." \
  "文件夹路径过长，请选择较短的路径。"
!insertmacro Words PLACE_TAKEN \
  "There is another program in this folder. Choose another one." \
  "In diesem Ordner liegt ein anderes Programm. Bitte einen anderen wählen." \
  "此文件夹中已有其他程序，请选择其他文件夹。"
!insertmacro Words OPTIONS_TITLE "Options" "Optionen" "选项"
!insertmacro Words OPTIONS_SUBTITLE \
  "How ${APP} is started." \
  "Wie ${APP} gestartet wird." \
  "${APP} 的启动方式。"
!insertmacro Words OPTION_AUTOSTART \
  "&Start ${APP} when I log in" \
  "${APP} bei der Anmeldung &starten" \
  "登录时启动 ${APP}(&S)"
!insertmacro Words OPTION_AUTOSTART_WHY \
  "Local programs then find it at ${URL}. To change it later: appliance-cli autostart on, or off." \
  "Lokale Programme finden es dann unter ${URL}. Später ändern: appliance-cli autostart on oder off." \
  "本机程序可通过 ${URL} 访问。以后可用 appliance-cli autostart on 或 off 更改。"
!insertmacro Words UPGRADE_NOTE \
  "Version $BeforeVersion is replaced. A running copy answers its requests first and then ends. Models, settings and keys stay." \
  "Version $BeforeVersion wird ersetzt. Eine laufende Kopie beantwortet erst ihre Anfragen und endet dann. Modelle, Einstellungen und Schlüssel bleiben." \
  "将替换版本 $BeforeVersion。正在运行的副本会先完成现有请求再退出。模型、设置和密钥将保留。"
!insertmacro Words PACK_NOTE \
  "The runtime pack beside this set-up is installed too: this machine has an NVIDIA card." \
  "Das Laufzeitpaket neben diesem Setup wird mit installiert: Dieser Rechner hat eine NVIDIA-Karte." \
  "本机有 NVIDIA 显卡，将同时安装旁边的运行时包。"
!insertmacro Words PACK_NO_CARD \
  "The runtime pack beside this set-up is not installed: no NVIDIA card was found." \
  "Das Laufzeitpaket neben diesem Setup wird nicht installiert: Es wurde keine NVIDIA-Karte gefunden." \
  "未找到 NVIDIA 显卡，不安装旁边的运行时包。"
!insertmacro Words PACK_INSTALLING "Runtime pack:" "Laufzeitpaket:" "运行时包："
!insertmacro Words PACK_FAILED \
  "${APP} is installed, but the runtime pack $R6 is not. Later: appliance-cli runtime install" \
  "${APP} ist installiert, das Laufzeitpaket $R6 aber nicht. Später: appliance-cli runtime install" \
  "${APP} 已安装，但运行时包 $R6 未安装。以后可运行：appliance-cli runtime install"
!insertmacro Words COPYING "Unpacking the new version" "Die neue Version wird entpackt" "正在解压新版本"
!insertmacro Words STOPPING \
  "Asking the running copy to answer its requests and to end" \
  "Die laufende Kopie soll ihre Anfragen beantworten und enden" \
  "正在请求运行中的副本完成请求并退出"
!insertmacro Words SWAPPING "Putting the new version in place" "Die neue Version wird eingesetzt" "正在换上新版本"
!insertmacro Words TRYING "Looking whether it starts" "Startet sie?" "正在检查能否启动"
!insertmacro Words STILL_RUNNING \
  "${APP} is still running and does not end. End it, then try again." \
  "${APP} läuft noch und endet nicht. Bitte beenden und noch einmal versuchen." \
  "${APP} 仍在运行且未退出。请结束它后重试。"
!insertmacro Words SWAP_FAILED \
  "The new version could not be put in place: files are in use or protected. What was there before is there again." \
  "Die neue Version konnte nicht eingesetzt werden: Dateien sind in Gebrauch oder geschützt. Der Stand von vorher ist wieder da." \
  "无法换上新版本：文件正在使用或受保护。已恢复到之前的状态。"
!insertmacro Words DOES_NOT_START \
  "The new version does not start on this machine. What was there before is there again." \
  "Die neue Version startet auf diesem Rechner nicht. Der Stand von vorher ist wieder da." \
  "新版本无法在本机启动。已恢复到之前的状态。"
!insertmacro Words START_NOW "Start ${APP} now" "${APP} jetzt starten" "立即启动 ${APP}"
!insertmacro Words DONE_TEXT \
  "${APP} ${VERSION} is installed.$\r$\n$\r$\nIts icon is in the task bar's corner. Local programs reach it at ${URL}" \
  "${APP} ${VERSION} ist installiert.$\r$\n$\r$\nDas Symbol ist in der Ecke der Taskleiste. Lokale Programme erreichen es unter ${URL}" \
  "${APP} ${VERSION} 已安装。$\r$\n$\r$\n图标位于任务栏角落。本机程序可通过 ${URL} 访问。"
!insertmacro Words DASHBOARD_LINK "Open ${URL}" "${URL} öffnen" "打开 ${URL}"
!insertmacro Words LINK_WORDS "Local inference server" "Lokaler Inferenzserver" "本机推理服务器"
!insertmacro Words UN_OPTIONS_TITLE "What stays" "Was bleibt" "保留的内容"
!insertmacro Words UN_OPTIONS_SUBTITLE \
  "The program goes. What is yours need not." \
  "Das Programm geht. Was Ihnen gehört, kann bleiben." \
  "程序将被删除，您的数据可以保留。"
!insertmacro Words UN_KEEPS \
  "Models, settings, keys and logs stay, for a later installation: in $LOCALAPPDATA\${APP} and in $PROFILE\${APP}." \
  "Modelle, Einstellungen, Schlüssel und Protokolle bleiben für eine spätere Installation: in $LOCALAPPDATA\${APP} und in $PROFILE\${APP}." \
  "模型、设置、密钥和日志将保留以供以后安装使用：$LOCALAPPDATA\${APP} 和 $PROFILE\${APP}。"
!insertmacro Words UN_PURGE \
  "&Delete them too" \
  "Diese auch &löschen" \
  "一并删除(&D)"
!insertmacro Words UN_PURGING "Deleting models, settings and keys" "Modelle, Einstellungen und Schlüssel werden gelöscht" "正在删除模型、设置和密钥"
!insertmacro Words UN_DELETING "Deleting the program's files" "Die Dateien des Programms werden gelöscht" "正在删除程序文件"
!insertmacro Words UN_LEFT \
  "Some files could not be deleted: they are in use or protected. Close what uses them, then uninstall again." \
  "Einige Dateien ließen sich nicht löschen: Sie sind in Gebrauch oder geschützt. Bitte schließen, was sie benutzt, und noch einmal deinstallieren." \
  "部分文件正在使用或受保护，无法删除。请关闭使用它们的程序后再次卸载。"
