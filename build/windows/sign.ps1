# sign.ps1 FILE...: sign programs and DLLs in place with signtool, if there is a certificate; else do nothing.
# SIGN_PFX, SIGN_PASSFILE and SIGN_URL as in sign.sh. What others have signed keeps its signature.
param([Parameter(Mandatory, ValueFromRemainingArguments)] [string[]] $Files)
$ErrorActionPreference = "Stop"
if (-not $env:SIGN_PFX) { exit 0 }
$options = @("sign", "/q", "/fd", "sha256", "/d", "Inference Appliance", "/f", $env:SIGN_PFX)
if ($env:SIGN_PASSFILE) { $options += @("/p", (Get-Content -TotalCount 1 $env:SIGN_PASSFILE)) }
if ($env:SIGN_URL) { $options += @("/tr", $env:SIGN_URL, "/td", "sha256") }
foreach ($file in $Files) {
    if ([IO.Path]::GetExtension($file) -ne ".exe" -and (Get-AuthenticodeSignature $file).Status -eq "Valid") { continue }
    & signtool @options $file
    if ($LASTEXITCODE) { exit $LASTEXITCODE }
}
