#!/bin/bash
# Runs as root inside a clean Debian root that test.sh made:  try_package.sh OLD.deb NEW.deb NEW_VERSION
# Installs the package, asks the service, upgrades, removes and purges it. With systemd running the service is its own;
# else its ExecStart is started as the unit's user. /src is the checkout. One line a check; ends at the first that fails.
set -euo pipefail
old=$1 new=$2 new_version=$3
url=http://127.0.0.1:11711 home=/var/lib/appliance
began=$(date +%s)
export LANG=C.UTF-8
systemd=''
[ ! -d /run/systemd/system ] || systemd=1
umask 022

ok() { printf '[%4d s] ok    %s\n' $(($(date +%s) - began)) "$*"; }
fail() {
  printf '[%4d s] FAULT %s\n' $(($(date +%s) - began)) "$*"
  if [ -n "$systemd" ]; then journalctl -u appliance --no-pager -n 40 || true; else tail -n 40 /tmp/service.log || true; fi
  exit 1
}
# be WHAT COMMAND...: it must succeed
be() { local what=$1; shift; "$@" >/tmp/said 2>&1 || { cat /tmp/said; fail "$what"; }; ok "$what"; }
is() { [ "$2" = "$3" ] || fail "$1: $2, not $3"; ok "$1: $2"; }
# waiting SECONDS COMMAND...: until it succeeds
waiting() {
  local end=$(($(date +%s) + $1))
  shift
  until "$@" >/dev/null 2>&1; do [ "$(date +%s)" -lt "$end" ] || return 1; sleep 0.5; done
}
as_service() { setpriv --reuid=appliance --regid=appliance --init-groups env HOME=$home "$@"; }
get() { curl -fsS --max-time 120 "$@"; }
# json NAME: the first value of that name
json() {
  tr ',{}' '\n\n\n' | awk -v name="\"$1\":" '!found && (at = index($0, name)) {
    found = 1; value = substr($0, at + length(name)); gsub(/^ *"?|"$/, "", value); print value }'
}
# the files of the system but for what the package system, systemd and this test keep for themselves
files() {
  find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /src -o -path /packages \
    -o -path /var/log -o -path /var/cache -o -path /var/lib/apt -o -path /var/lib/systemd \) -prune -o -print |
    grep -vE '^/var/lib/dpkg/|^/etc/(passwd|group|shadow|gshadow)-$|^/var/tmp/systemd-private|^/etc/\.pwd\.lock$' | sort
}
# about MODEL ANSWER LABEL SCORE: the first label, and a score within 0.03
about() {
  local label score
  label=$(json label <<<"$2") score=$(json score <<<"$2")
  [ "$label" = "$3" ] && awk -v a="$score" -v b="$4" 'BEGIN {exit !(a > b - 0.03 && a < b + 0.03)}' ||
    fail "$1: $label $score, not $3 $4"
  ok "$1: $label $score"
}
# An emulated processor is a hundred times slower. So there the embedded models are not merged, whose proof at warm-up takes
# a minute a model, and threads do not wait for each other.
gently() {
  [ -n "${QEMU:-}" ] || return 0
  sed -i 's/^max = [0-9]*$/max = 1/' /usr/lib/appliance/_internal/assets/models/*/model.toml
  grep -q ^threads /etc/appliance/settings.toml ||
    printf 'threads = 1\nmax_batch = 1\nrun_timeout_ms = 300000\n' >>/etc/appliance/settings.toml
}
start() {
  gently
  if [ -n "$systemd" ]; then
    waiting 30 systemctl is-active appliance || fail "the service is not active"
    return
  fi
  local command
  command=$(sed -n 's/^ExecStart=//p' /lib/systemd/system/appliance.service)
  (cd $home && umask 077 && as_service $command >>/tmp/service.log 2>&1) &
}
stop_by_hand() {
  [ -n "$systemd" ] && return
  as_service appliance stop >/dev/null
  waiting 60 sh -c '! pgrep -u appliance' || fail "it does not end"
}
main_pid() { if [ -n "$systemd" ]; then systemctl show -p MainPID --value appliance; else get $url/api/status | json pid; fi; }
ready() { waiting 600 curl -fsS --max-time 10 $url/ready || fail "it does not get ready"; ok "$1: ready"; }
four() {
  local answer
  answer=$(get -F file=@/src/tests/photos/chelsea.png $url/predict/classify)
  about classify "$answer" "Egyptian cat" 0.77
  answer=$(get -F file=@/src/tests/photos/coffee.png $url/predict/detect)
  about detect "$answer" "Coffee cup" 0.55
  answer=$(get -F file=@/src/assets/selftest/text.png $url/predict/ocr)
  [[ $answer == *'The answer is ready\nat port 11711'* ]] || fail "ocr: $answer"
  ok "ocr: The answer is ready / at port 11711"
  get -F file=@/src/tests/photos/astronaut.png -H "Accept: image/png" -o /tmp/cut.png $url/predict/segment
  is "segment" "$(head -c 4 /tmp/cut.png | tail -c 3), $(($(stat -c %s /tmp/cut.png) > 10000)) (over 10 kB)" "PNG, 1 (over 10 kB)"
}

echo "== $(dpkg --print-architecture), $([ -n "$systemd" ] && systemctl --version | head -n 1 || echo "no systemd")"
files >/tmp/before
be "install" dpkg -i "$old"
version=$(dpkg-query -f '${Version}' -W "$(dpkg-deb -f "$old" Package)")
is "appliance --version" "$(appliance --version)" "${version//\~/}"
is "user" "$(getent passwd appliance | cut -d: -f6-7)" "$home:/usr/sbin/nologin"
is "settings" "$(stat -c %U:%G:%a /etc/appliance/settings.toml)" "root:appliance:640"
is "models folder" "$(stat -c %U:%G:%a $home/models)" "appliance:appliance:2770"
[ /etc/systemd/system/multi-user.target.wants/appliance.service -ef /lib/systemd/system/appliance.service ] || fail "not enabled"
ok "enabled"

start
ready "first start"
if [ -n "$systemd" ]; then
  pid=$(main_pid)
  is "rights of the process" "$(sed -n 's/^\(CapEff\|NoNewPrivs\|Seccomp\):\t/\1 /p' "/proc/$pid/status" | tr '\n' ' ')" \
    "CapEff 0000000000000000 NoNewPrivs 1 Seccomp 2 "
  is "root folder in its sight" "$(awk '$5 == "/" {print substr($6, 1, 2)}' "/proc/$pid/mountinfo" | tail -n 1)" "ro"
fi
four
as_service appliance selftest >/tmp/selftest 2>&1 || { cat /tmp/selftest; fail "selftest"; }
ok "selftest: $(tail -n 1 /tmp/selftest)"
grep -i warning /tmp/selftest | grep -v ^passed || true

appliance tray >/tmp/said 2>&1 && fail "a tray icon without a desktop" || true
is "tray without a desktop" "$(cut -c1-44 /tmp/said)" "no tray icon (there is no graphical session "

be "a model is added" as_service appliance models add /src/assets/models/detect/1/model.onnx --name mine
waiting 120 curl -fsS $url/v2/models/mine/ready || fail "the added model is not served"
ok "the added model is served"
echo 'queue_timeout_ms = 4321' >>/etc/appliance/settings.toml
waiting 30 grep -q queue_timeout_ms $home/state/logs/appliance.log || fail "the setting is not taken up"
ok "a changed setting is taken up while it runs"

if [ -n "$systemd" ]; then
  engine=$(get $url/api/status | tr -d ' \n' | sed -n 's/.*"engine":{[^}]*"pid":\([0-9]*\).*/\1/p')
  kill -9 "$engine"
  is "after the engine was killed" "$(get -F file=@/src/tests/photos/chelsea.png $url/predict/classify | json label)" "Egyptian cat"
  kill -9 "$pid"
  waiting 60 sh -c "[ \$(systemctl show -p MainPID --value appliance) != $pid ] && curl -fsS $url/ready" || fail "it is not restarted"
  ok "after the program was killed: started again"
fi

pid=$(main_pid)
stop_by_hand
be "upgrade" dpkg -i "$new"
start
ready "after the upgrade"
is "version" "$(dpkg-query -f '${Version}' -W "$(dpkg-deb -f "$new" Package)")" "$new_version"
[ "$(main_pid)" != "$pid" ] || fail "it was not restarted"
ok "it is another process"
is "the setting" "$(tail -n 1 /etc/appliance/settings.toml), $(stat -c %G:%a /etc/appliance/settings.toml)" \
  "queue_timeout_ms = 4321, appliance:640"
waiting 120 curl -fsS $url/v2/models/mine/ready || fail "the added model is gone"
ok "the added model is served"
four

stop_by_hand
be "remove" dpkg --remove "$(dpkg-deb -f "$new" Package)"
! pgrep -u appliance >/dev/null || fail "it still runs"
[ ! -e /usr/lib/appliance ] && [ ! -e /usr/bin/appliance ] || fail "files of the program are left"
[ -f /etc/appliance/settings.toml ] && [ -n "$(find $home/models -name '*.onnx')" ] || fail "settings or models are gone"
ok "nothing runs, the program's files are gone, settings and models are there"
be "install again" dpkg -i "$new"
start
ready "with what was kept"
waiting 120 curl -fsS $url/v2/models/mine/ready || fail "the added model is gone"
ok "the added model is served"
stop_by_hand
be "purge" dpkg --purge "$(dpkg-deb -f "$new" Package)"
! getent passwd appliance >/dev/null && ! getent group appliance >/dev/null || fail "the user is left"
files >/tmp/after
diff /tmp/before /tmp/after || fail "the files above are left or gone"
ok "nothing is left, neither files nor user"
echo "== passed"
