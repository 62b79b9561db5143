#!/bin/bash
# sign.sh FILE...: sign the programs and DLLs in place, if there is a certificate; else do nothing.
#   SIGN_PFX       the certificate and its key (PKCS#12)
#   SIGN_PASSFILE  a file with its password, if it has one
#   SIGN_URL       a time stamp server (RFC 3161), so that the signature outlives the certificate; none: no time stamp
# What others have signed keeps its signature.
set -euo pipefail
[ -n "${SIGN_PFX:-}" ] || exit 0
for file in "$@"; do
  if [ "${file##*.}" != exe ] && osslsigncode extract-signature -in "$file" -out /dev/null >/dev/null 2>&1; then
    continue
  fi
  signed=$(mktemp)
  osslsigncode sign -pkcs12 "$SIGN_PFX" ${SIGN_PASSFILE:+-readpass "$SIGN_PASSFILE"} -h sha256 -n "Inference Appliance" \
    ${SIGN_URL:+-ts "$SIGN_URL"} -in "$file" -out "$signed.new" >/dev/null
  cat "$signed.new" >"$file" # keeps the file's own rights
  rm -f "$signed" "$signed.new"
done
