# Takes the service and the program away. Configuration, state and log stay, unless -Purge
# is given: what is not delivered yet is lost with them.
#   powershell.exe -NoProfile -ExecutionPolicy Bypass -File uninstall.ps1 [-Purge]
param([switch] $Purge)
. "$PSScriptRoot\lib.ps1"

Assert-Administrator
Enter-Setup
if (Test-Service) {
    Write-Step '+ remove service sebridge'
    Stop-Bridge
    Invoke-OrStop 'sc.exe' 'sc.exe' @('delete', 'sebridge')
}
foreach ($path in @($link, $versions)) {
    if (Test-Path -LiteralPath $path) {
        Write-Step "+ remove $path"
        Remove-Item -Recurse -Force -LiteralPath $path
    }
}
$source = 'HKLM:\SYSTEM\CurrentControlSet\Services\EventLog\Application\sebridge'
if (Test-Path -LiteralPath $source) {
    Remove-Item -Recurse -Force -LiteralPath $source
}
$found = @(Get-ChildItem -LiteralPath $kit -Filter 'python-3.*-amd64.exe')
if ($found.Count -eq 1 -and (Test-Path -LiteralPath $python)) {
    Write-Step "+ remove $home_of_python"
    $done = Start-Process -FilePath $found[0].FullName -ArgumentList '/uninstall /quiet' -Wait -PassThru
    if (@(0, 3010) -notcontains $done.ExitCode) {
        Stop-Setup "$($found[0].Name) failed with code $($done.ExitCode)"
    }
}
elseif (Test-Path -LiteralPath $python) {
    Write-Step "! $home_of_python stays: it was not installed from here"
}
if ($Purge -and (Test-Path -LiteralPath $settings)) {
    Write-Step "+ remove $settings"
    # Not Remove-Item: rd follows no link that the service may have left.
    Invoke-OrStop 'rd' 'cmd.exe' @('/d', '/c', 'rd', '/s', '/q', $settings)
}
exit 0
