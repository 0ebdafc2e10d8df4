# What the scripts beside this file share; Windows PowerShell 5.1 runs them. Versions of
# the program lie beside one another, and a line in the Python's site-packages says which
# is used: so a forwarder that runs keeps the files that it began with, and the way back
# is that line.
Set-StrictMode -Version 3.0
$ErrorActionPreference = 'Stop'
$ProgressPreference = 'SilentlyContinue'

$kit = $PSScriptRoot
$home_of_python = "$env:ProgramFiles\sebridge"
$python = "$home_of_python\python.exe"
$link = "$home_of_python\Lib\site-packages\sebridge.pth"
$versions = "$env:ProgramFiles\sebridge-versions"
$settings = "$env:ProgramData\sebridge"
$config = "$settings\bridge.toml"
$account = 'NT SERVICE\sebridge'
$patience = 90 # seconds in which a version has to get ready

function Write-Step([string] $Text) {
    Write-Host $Text
}

# Stop-Setup: say what is wrong in one line, and end the script.
function Stop-Setup([string] $Why, [int] $Code = 1) {
    [Console]::Error.WriteLine("sebridge: $Why")
    exit $Code
}

# Invoke-Native: run a program, and return its exit code. What it writes to its error
# stream is no error of this script.
function Invoke-Native([string] $Program, [string[]] $Words, [switch] $Quiet) {
    $ErrorActionPreference = 'Continue'
    if ($Quiet) {
        & $Program @Words *> $null
    }
    else {
        & $Program @Words | Out-Host
    }
    return $LASTEXITCODE
}

# Invoke-OrStop: run a program that must succeed.
function Invoke-OrStop([string] $What, [string] $Program, [string[]] $Words) {
    $code = Invoke-Native $Program $Words
    if ($code -ne 0) {
        Stop-Setup "$What failed with code $code"
    }
}

function Assert-Administrator {
    $who = [Security.Principal.WindowsPrincipal][Security.Principal.WindowsIdentity]::GetCurrent()
    if (-not $who.IsInRole([Security.Principal.WindowsBuiltInRole]::Administrator)) {
        Stop-Setup 'must be run by an administrator, in an elevated PowerShell' 2
    }
}

# Assert-Kit: each file has the hash that was noted when the archive was made.
function Assert-Kit {
    foreach ($line in Get-Content -LiteralPath "$kit\SHA256SUMS") {
        $sum, $name = $line -split '  ', 2
        $file = Join-Path $kit $name
        if (-not (Test-Path -LiteralPath $file)) {
            Stop-Setup "$name is missing: unpack the archive anew"
        }
        if ((Get-FileHash -Algorithm SHA256 -LiteralPath $file).Hash -ne $sum) {
            Stop-Setup "$name is damaged: unpack the archive anew"
        }
    }
}

# Assert-Python: there is a Python for the service; install the one that lies here.
function Assert-Python {
    if (-not (Test-Path -LiteralPath $python)) {
        $found = @(Get-ChildItem -LiteralPath $kit -Filter 'python-3.*-amd64.exe')
        if ($found.Count -ne 1) {
            Stop-Setup "$python is missing: put one installer of python.org, such as python-3.13.9-amd64.exe, beside the scripts" 2
        }
        Write-Step "+ install $($found[0].Name)"
        $words = "/quiet InstallAllUsers=1 Include_launcher=0 Include_test=0 Shortcuts=0 TargetDir=`"$home_of_python`""
        $done = Start-Process -FilePath $found[0].FullName -ArgumentList $words -Wait -PassThru
        if (@(0, 3010) -notcontains $done.ExitCode) {
            Stop-Setup "$($found[0].Name) failed with code $($done.ExitCode)"
        }
    }
    $test = 'import struct, sys; sys.exit(not ((3, 11) <= sys.version_info[:2] <= (3, 14) and struct.calcsize(''P'') == 8 and sys.prefix == sys.base_prefix))'
    if ((Invoke-Native $python @('-I', '-c', $test)) -ne 0) {
        Stop-Setup "$python must be Python 3.11 to 3.14 for 64 bits, and no virtual environment" 2
    }
}

# Get-Current: the name of the version in use; empty without one.
function Get-Current {
    if (Test-Path -LiteralPath $link) {
        if ([IO.File]::ReadAllText($link) -match '([0-9a-f]{12})''\)') {
            return $Matches[1]
        }
    }
    return ''
}

# Get-Previous: the name of the version in use before it; empty without one.
function Get-Previous {
    $name = ''
    if (Test-Path -LiteralPath "$versions\previous") {
        $name = [IO.File]::ReadAllText("$versions\previous").Trim()
    }
    if ($name -and (Test-Path -LiteralPath "$versions\$name\whole")) {
        return $name
    }
    return ''
}

# Set-Current: use this version from now on, and keep in mind which one it was.
function Set-Current([string] $Version) {
    $last = Get-Current
    if ($last -eq $Version) {
        return
    }
    Write-Step "+ use $versions\$Version"
    if ($last) {
        [IO.File]::WriteAllText("$versions\previous", $last)
    }
    [IO.File]::WriteAllText($link, "import site; site.addsitedir(r'$versions\$Version')`n")
}

# Get-Wanted: the name of the version that lies here, by all that it is made of.
function Get-Wanted {
    $bytes = [Text.Encoding]::UTF8.GetBytes("$([IO.File]::ReadAllText("$kit\SHA256SUMS"))$((Get-Item -LiteralPath $python).VersionInfo.FileVersion)")
    $sum = [Security.Cryptography.SHA256]::Create().ComputeHash($bytes)
    return -join ($sum[0..5] | ForEach-Object { $_.ToString('x2') })
}

# New-Version: make the version that lies here beside the one that runs; return its name.
function New-Version {
    $wanted = Get-Wanted
    $folder = "$versions\$wanted"
    if (Test-Path -LiteralPath "$folder\whole") {
        Write-Step "= $folder"
        return $wanted
    }
    Write-Step "+ make $folder"
    if (Test-Path -LiteralPath $folder) {
        Remove-Item -Recurse -Force -LiteralPath $folder
    }
    New-Item -ItemType Directory -Force -Path $folder | Out-Null
    $pip = (Get-Item -Path "$kit\wheels\pip-*.whl").FullName
    $own = (Get-Item -Path "$kit\wheels\scheduled_events_bridge-*.whl").FullName
    $words = @('-I', "$pip\pip", '--isolated', 'install', '--quiet', '--disable-pip-version-check', '--no-warn-script-location')
    $words += @('--no-index', '--no-deps', '--target', $folder)
    $locked = @('--find-links', "$kit\wheels", '--require-hashes', '--requirement', "$kit\requirements.txt")
    Invoke-OrStop 'pip' $python ($words + $locked)
    Invoke-OrStop 'pip' $python ($words + @($own))
    [IO.File]::WriteAllText("$folder\whole", '')
    return $wanted
}

# Remove-OldVersion: all but the present one and the one before.
function Remove-OldVersion {
    $kept = @((Get-Current), (Get-Previous))
    foreach ($folder in Get-ChildItem -Directory -LiteralPath $versions) {
        if ($kept -notcontains $folder.Name) {
            Write-Step "+ remove $($folder.FullName)"
            Remove-Item -Recurse -Force -LiteralPath $folder.FullName
        }
    }
}

function Test-Service {
    return $null -ne (Get-Service -Name 'sebridge' -ErrorAction SilentlyContinue)
}

function Test-Running {
    return (Test-Service) -and (Get-Service -Name 'sebridge').Status -eq 'Running'
}

# Test-Answer: a forwarder answers on its port. Its state file is not opened.
function Test-Answer {
    return (Invoke-Native $python @('-I', '-m', 'bridge', 'status', '--live', '-c', $config) -Quiet) -eq 0
}

# Install-Folder: configuration, state and log, for administrators and the service alone.
function Install-Folder {
    New-Item -ItemType Directory -Force -Path $settings, "$settings\secrets" | Out-Null
    Protect-Folder
    if (Test-Path -LiteralPath $config) {
        Write-Step "= $config"
    }
    else {
        Write-Step "+ write $config"
        Copy-Item -LiteralPath "$kit\bridge.toml" -Destination $config
    }
}

function Protect-Folder {
    # By their numbers, as the names are those of the language: SYSTEM, Administrators.
    $words = @($settings, '/inheritance:r', '/grant:r', '*S-1-5-18:(OI)(CI)F', '*S-1-5-32-544:(OI)(CI)F')
    if (Test-Service) {
        $words += "${account}:(OI)(CI)M"
    }
    if ((Invoke-Native 'icacls.exe' $words -Quiet) -ne 0) {
        Stop-Setup "icacls could not protect $settings"
    }
}

# Install-Service: the service, its account and what Windows does after a failure.
function Install-Service {
    if (Test-Service) {
        Write-Step '= service sebridge'
        return
    }
    Write-Step '+ service sebridge'
    $words = @('-I', '-m', 'bridge.cli.windows_service', '--startup', 'auto', '--username', $account, 'install')
    Invoke-OrStop 'the registration of the service' $python $words
    Invoke-OrStop 'sc.exe' 'sc.exe' @('failure', 'sebridge', 'reset=', '86400', 'actions=', 'restart/3000/restart/3000/restart/3000')
    Invoke-OrStop 'sc.exe' 'sc.exe' @('failureflag', 'sebridge', '1')
    Protect-Folder
}

# Get-Fingerprint: of what the service is started with; of secrets only their age.
function Get-Fingerprint {
    $found = @((Get-Current), (Get-FileHash -Algorithm SHA256 -LiteralPath $config).Hash)
    foreach ($file in Get-ChildItem -File -LiteralPath "$settings\secrets" | Sort-Object -Property Name) {
        $found += "$($file.Name) $($file.LastWriteTimeUtc.Ticks)"
    }
    return $found -join "`n"
}

function Test-Started {
    $note = "$versions\started"
    if (-not (Test-Running) -or -not (Test-Path -LiteralPath $note)) {
        return $false
    }
    return [IO.File]::ReadAllText($note) -eq (Get-Fingerprint)
}

# Restart-Bridge: restart the service, and tell whether it gets ready: it runs, and
# answers on its port if it did before; and it still runs after five seconds.
function Restart-Bridge([bool] $HasAnswered) {
    Write-Step '+ restart sebridge'
    try {
        Stop-Service -Name 'sebridge' -Force
        Start-Service -Name 'sebridge'
    }
    catch {
        Write-Step "! $($_.Exception.Message)"
        return $false
    }
    $end = (Get-Date).AddSeconds($patience)
    while (-not ((Test-Running) -and (-not $HasAnswered -or (Test-Answer)))) {
        if ((Get-Date) -ge $end) {
            return $false
        }
        Start-Sleep -Seconds 1
    }
    Start-Sleep -Seconds 5
    if (-not (Test-Running)) {
        return $false
    }
    [IO.File]::WriteAllText("$versions\started", (Get-Fingerprint))
    return $true
}

# Use-Version: use a version, and go back to the one before if it does not get ready.
function Use-Version([string] $Version) {
    $last = Get-Current
    $older = Get-Previous
    $hasAnswered = (Test-Running) -and (Test-Answer)
    Set-Current $Version
    if (Test-Started) {
        Write-Step '= sebridge runs with all of this'
        return
    }
    $code = Invoke-Native $python @('-I', '-m', 'bridge', 'check', '-c', $config)
    if ($code -eq 0 -and (Restart-Bridge $hasAnswered)) {
        return
    }
    if (-not $last -or $last -eq $Version) {
        if ($code -ne 0) {
            Stop-Setup "$config is refused, as said above"
        }
        Stop-Setup "the service does not get ready: $settings\log\sebridge.log and the Event Log say why"
    }
    Write-Step '! this version does not get ready: the one before is used again'
    Set-Current $last
    [IO.File]::WriteAllText("$versions\previous", $older)
    if (-not (Restart-Bridge $hasAnswered)) {
        Stop-Setup 'neither version gets ready'
    }
    Stop-Setup "the version before is in use again; what was wrong: $settings\log\sebridge.log"
}
