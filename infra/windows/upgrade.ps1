# Brings the version beside this script where another one runs, or uses the one before
# again. A version that does not get ready gives way to the one before, and the exit code is 1.
#   powershell.exe -NoProfile -ExecutionPolicy Bypass -File upgrade.ps1 [-Rollback]
param([switch] $Rollback)
. "$PSScriptRoot\lib.ps1"

Assert-Administrator
Enter-Setup
if (-not (Test-Service)) {
    Stop-Setup 'there is no service sebridge to upgrade: run install.ps1' 2
}
if ($Rollback) {
    $previous = Get-Previous
    if (-not $previous) {
        Stop-Setup 'there is no version before this one'
    }
    Use-Version $previous
    exit 0
}
Assert-Kit
Assert-Python
$wanted = New-Version
Install-Folder
Install-Service
Use-Version $wanted
Remove-OldVersion
exit 0
