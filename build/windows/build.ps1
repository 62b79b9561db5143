<#
.SYNOPSIS
Builds the Windows program on Windows 10 or 11 (x64), with the same locks, specification and checks as build.sh.

Needs Python 3.11 (x64) as `py -3.11`, and NSIS (makensis in PATH) for the installer.

    build\windows\build.ps1 [-Variant cpu|cuda] [-Base FOLDER] [-Quick] [-FolderOnly]
#>
param(
    [ValidateSet("cpu", "cuda")] [string] $Variant = "cpu",
    [string] $Base = "",
    [switch] $Quick,
    [switch] $FolderOnly
)
Set-StrictMode -Version Latest
$ErrorActionPreference = "Stop"

$repo = (Resolve-Path "$PSScriptRoot\..\..").Path
if (-not $Base) { $Base = "$repo\work\windows" }
$began = Get-Date
function Step([string] $words) { Write-Host ("[{0,3:N0} s] {1}" -f ((Get-Date) - $began).TotalSeconds, $words) }
function Run([string] $program, [string[]] $words) {
    & $program @words
    if ($LASTEXITCODE -ne 0) { throw "$program ended with code $LASTEXITCODE" }
}

# same inputs, same files
if (-not $env:SOURCE_DATE_EPOCH) { $env:SOURCE_DATE_EPOCH = (git -C $repo log -1 --format=%ct) }
$env:PYTHONHASHSEED = "0"

Step "Python with the locked wheels"
$python = "$Base\python-$Variant\Scripts\python.exe"
if (-not (Test-Path $python)) { Run "py" @("-3.11", "-m", "venv", "$Base\python-$Variant") }
Run $python @("-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes",
    "-r", "$repo\build\locks\windows-$Variant.txt")

Step "PyInstaller"
$dist = "$Base\dist-$Variant"
if (Test-Path $dist) { Remove-Item -Recurse -Force $dist }
Run $python @("-m", "PyInstaller", "--noconfirm", "--log-level", "WARN", "--distpath", $dist,
    "--workpath", "$Base\pyinstaller-$Variant", "$repo\appliance.spec")

Step "checks"
Run $python @("-X", "utf8", "$PSScriptRoot\check_folder.py", "$dist\appliance", "--forbid", $repo, "--forbid", $Base,
    "--forbid", "$env:USERPROFILE\")

if (-not $FolderOnly) {
    Step "installer"
    $work = "$Base\installer-$Variant"
    New-Item -ItemType Directory -Force $work, "$Base\out" | Out-Null
    $version = (& $python -c "import sys; sys.path.insert(0, sys.argv[1]); import appliance; print(appliance.__version__)" $repo)
    if ($env:SIGN_PFX) {
        Get-ChildItem "$dist\appliance" -Recurse -Include *.exe, *.dll, *.pyd | ForEach-Object {
            & "$PSScriptRoot\sign.ps1" $_.FullName
        }
    }
    Run $python @("$PSScriptRoot\filelist.py", "$dist\appliance", "$work\list", $version,
        "--also", "$repo\LICENSE=LICENSE.txt")
    $draw = @'
import sys
from PIL import Image
icon = Image.open(sys.argv[1]).convert("RGBA")
for name, size, small, place in (("side", (164, 314), 112, (26, 61)), ("header", (150, 57), 44, (98, 6))):
    picture = Image.new("RGB", size, "#f3f6fa" if name == "side" else "white")
    part = icon.resize((small, small))
    picture.paste(part, place, part)
    picture.save(f"{sys.argv[2]}/{name}.bmp")
'@
    Run $python @("-c", $draw, "$repo\assets\icons\appliance.png", $work)
    $text = [IO.File]::ReadAllText("$repo\LICENSE").Replace("`r`n", "`n").Replace("`n", "`r`n")
    [IO.File]::WriteAllText("$work\license.txt", $text, [Text.UTF8Encoding]::new($true))
    $options = @("-V2", "-WX", "-INPUTCHARSET", "UTF8")
    if ($Quick) { $options += "-DQUICK" }
    if ($Variant -eq "cuda") { $options += "-DCUDA" }
    if ($env:SIGN_PFX) {
        $sign = "powershell -NoProfile -ExecutionPolicy Bypass -File `"$PSScriptRoot\sign.ps1`""
        $options += "-DSIGN=$sign"
    }
    Run "makensis" ($options + @("-DVERSION=$version", "-DFILES=$work\list",
        "-DOUT=$Base\out\inference-appliance-$version-$Variant-setup.exe", "-DICON=$repo\assets\icons\appliance.ico",
        "-DSIDE=$work\side.bmp", "-DHEADER=$work\header.bmp", "-DLICENSE=$work\license.txt",
        "$repo\installer\windows\setup.nsi"))
}
Step "done: $dist\appliance"
