# Installs the service sebridge from the files beside this script, without the Internet.
# Run it again after a change of bridge.toml, of the secrets, or from a newer archive: what
# is as it should be stays as it is.
#   powershell.exe -NoProfile -ExecutionPolicy Bypass -File install.ps1 [-NoStart]
param([switch] $NoStart)
. "$PSScriptRoot\lib.ps1"

Assert-Administrator
Enter-Setup
Assert-Kit
Assert-Python
$wanted = New-Version
$isFirst = -not (Test-Service)
Install-Folder
if ($isFirst) {
    Set-Current $wanted
}
Install-Service
if ($NoStart) {
    Set-Current $wanted
}
elseif ($isFirst -and (Invoke-Native $python @('-I', '-m', 'bridge', 'check', '-c', $config)) -ne 0) {
    Write-Step "! not started: edit $config, then: Start-Service sebridge"
}
else {
    Use-Version $wanted
}
Remove-OldVersion
exit 0
