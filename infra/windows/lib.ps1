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
$kept = "$settings\state" # the one folder, beside the log's, that the service may write to
$log = "$settings\log"
$account = 'NT SERVICE\sebridge'
$patience = 90 # seconds in which a version has to get ready
$stop_patience = 60 # seconds in which a forwarder has to stop
# Whose files are trusted: the system's, administrators', and those of who runs this.
$trusted = @('S-1-5-18', 'S-1-5-32-544', [Security.Principal.WindowsIdentity]::GetCurrent().User.Value)

function Write-Step([string] $Text) {
    Write-Host $Text
}

# Stop-Setup: say what is wrong in one line, and end the script.
function Stop-Setup([string] $Why, [int] $Code = 1) {
    [Console]::Error.WriteLine("sebridge: $Why")
    exit $Code
}

# Invoke-Native: run a program, and return its exit code; -1 if it cannot be started. What
# it writes to its error stream is no error of this script.
function Invoke-Native([string] $Program, [string[]] $Words, [switch] $Quiet) {
    $ErrorActionPreference = 'Continue'
    $global:LASTEXITCODE = -1 # that of an earlier program says nothing
    try {
        if ($Quiet) {
            & $Program @Words *> $null
        }
        else {
            & $Program @Words | Out-Host
        }
    }
    catch {
        Write-Step "! $Program cannot be started: $($_.Exception.Message)"
        return -1
    }
    return $global:LASTEXITCODE
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
    if (-not [Environment]::Is64BitProcess) {
        Stop-Setup 'must be run in the PowerShell for 64 bits, not in that for 32 bits (x86)' 2
    }
}

# Enter-Setup: keep out another installation until this script has ended; the script of a
# VM Application and that which it calls are one.
function Enter-Setup {
    $script:turn = New-Object System.Threading.Mutex($false, 'Global\sebridge-setup')
    try {
        $is_ours = $script:turn.WaitOne(0)
    }
    catch [System.Threading.AbandonedMutexException] {
        $is_ours = $true # the one before was ended
    }
    if (-not $is_ours) {
        Stop-Setup 'another installation runs: wait until it has ended'
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
        if (-not (Test-Path -LiteralPath $python)) {
            Stop-Setup "$($found[0].Name) has not made ${python}: this Python is installed elsewhere already; take another version, such as 3.13.9 for 3.13.8" 2
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
    $pip = Get-Wheel 'pip-*.whl'
    $own = Get-Wheel 'scheduled_events_bridge-*.whl'
    $words = @('-I', "$pip\pip", '--isolated', 'install', '--quiet', '--disable-pip-version-check', '--no-warn-script-location')
    $words += @('--no-index', '--no-deps', '--target', $folder)
    $locked = @('--find-links', "$kit\wheels", '--require-hashes', '--requirement', "$kit\requirements.txt")
    Invoke-OrStop 'pip' $python ($words + $locked)
    Invoke-OrStop 'pip' $python ($words + @($own))
    [IO.File]::WriteAllText("$folder\whole", '')
    return $wanted
}

# Get-Wheel: the path of the one wheel that a pattern fits; the folder's name is no pattern.
function Get-Wheel([string] $Pattern) {
    $found = @(Get-ChildItem -LiteralPath "$kit\wheels" -Filter $Pattern)
    if ($found.Count -ne 1) {
        Stop-Setup "there must be one $Pattern in ${kit}\wheels: unpack the archive anew"
    }
    return $found[0].FullName
}

# Remove-OldVersion: all but the present one and the one before. What is still in use, such
# as by a scan for viruses, stays until the next time.
function Remove-OldVersion {
    $kept = @((Get-Current), (Get-Previous))
    foreach ($folder in Get-ChildItem -Directory -LiteralPath $versions) {
        if ($kept -notcontains $folder.Name) {
            Write-Step "+ remove $($folder.FullName)"
            try {
                Remove-Item -Recurse -Force -LiteralPath $folder.FullName
            }
            catch {
                Write-Step "! it is in use, and removed the next time: $($_.Exception.Message)"
            }
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

# Assert-Own: a file or folder is no link, and belongs to an administrator. Every user may
# make folders in ProgramData: who has made this one before could change what is in it.
function Assert-Own([string] $Path) {
    if ((Get-Item -Force -LiteralPath $Path).Attributes -band [IO.FileAttributes]::ReparsePoint) {
        Stop-Setup "$Path is a link: remove it"
    }
    $owner = (Get-Acl -LiteralPath $Path).GetOwner([Security.Principal.SecurityIdentifier]).Value
    if ($trusted -notcontains $owner) {
        Stop-Setup "$Path belongs to ${owner}: remove it, or take it over after a look at it (icacls `"$Path`" /setowner *S-1-5-32-544)"
    }
}

# Install-Folder: configuration, state and log, for administrators and the service alone.
function Install-Folder {
    New-Item -ItemType Directory -Force -Path $settings | Out-Null
    Protect-Folder
    if (Test-Path -LiteralPath $config) {
        Write-Step "= $config"
    }
    else {
        Write-Step "+ write $config"
        Copy-Item -LiteralPath "$kit\bridge.toml" -Destination $config
    }
}

# Protect-Folder: administrators may do everything; the service may read all of it, and
# write to its state and its log. The folder is closed before what is in it is looked at.
function Protect-Folder {
    Assert-Own $settings
    Set-Right $settings 'FRFX'
    New-Item -ItemType Directory -Force -Path "$settings\secrets", $kept, $log | Out-Null
    foreach ($folder in @("$settings\secrets", $kept, $log)) {
        Assert-Own $folder
    }
    Set-Right "$settings\secrets" 'FRFX'
    Set-Right $kept 'FRFWFXSD'
    Set-Right $log 'FRFWFXSD'
    $files = @(Get-ChildItem -File -Force -LiteralPath "$settings\secrets" | ForEach-Object { $_.FullName })
    foreach ($name in @('bridge.toml', 'bridge.toml.before', 'bridge.toml.fleet')) {
        if (Test-Path -LiteralPath "$settings\$name") {
            $files += "$settings\$name"
        }
    }
    foreach ($file in $files) {
        Assert-Own $file
        # From now on it has the rights of its folder, and none of its own.
        if ((Invoke-Native 'icacls.exe' @($file, '/reset', '/L') -Quiet) -ne 0) {
            Stop-Setup "icacls could not protect $file"
        }
    }
}

# Set-Right: replace all rights to a folder at once, so that it is open at no moment: the
# system and administrators may do everything, the service what the letters say (SDDL).
function Set-Right([string] $Path, [string] $Letters) {
    $list = 'D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)'
    if (Test-Service) {
        $number = (New-Object Security.Principal.NTAccount($account)).Translate([Security.Principal.SecurityIdentifier]).Value
        $list += "(A;OICI;$Letters;;;$number)"
    }
    $rights = New-Object Security.AccessControl.DirectorySecurity
    $rights.SetSecurityDescriptorSddlForm($list, [Security.AccessControl.AccessControlSections]::Access)
    [IO.Directory]::SetAccessControl($Path, $rights)
}

# Install-Service: the service, its account and what Windows does after a failure. All but
# the first is set each time: a run before may have been cut off.
function Install-Service {
    if (Test-Service) {
        Write-Step '= service sebridge'
    }
    else {
        Write-Step '+ service sebridge'
        $words = @('-I', '-m', 'bridge.cli.windows_service', '--startup', 'auto', '--username', $account, 'install')
        Invoke-OrStop 'the registration of the service' $python $words
        if (-not (Test-Service)) {
            Stop-Setup 'the service was not registered'
        }
    }
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

# Get-ProcessNumber: of the service; 0 while it does not run.
function Get-ProcessNumber {
    return (Get-CimInstance -ClassName Win32_Service -Filter "Name = 'sebridge'").ProcessId
}

# Wait-Status: wait until the service has a status; tell whether it has it in time.
function Wait-Status([string] $Status, [int] $Seconds) {
    $end = (Get-Date).AddSeconds($Seconds)
    while ((Get-Service -Name 'sebridge').Status -ne $Status) {
        if ((Get-Date) -ge $end) {
            return $false
        }
        Start-Sleep -Milliseconds 500
    }
    return $true
}

# Stop-Bridge: stop the service; after a while its process is ended, which loses nothing.
# Stop-Service would wait without an end.
function Stop-Bridge {
    if ((Get-Service -Name 'sebridge').Status -eq 'Stopped') {
        return
    }
    Invoke-Native 'sc.exe' @('stop', 'sebridge') -Quiet | Out-Null
    if (Wait-Status 'Stopped' $stop_patience) {
        return
    }
    $number = Get-ProcessNumber
    if ($number) {
        Write-Step "! sebridge does not stop: its process $number is ended"
        Invoke-Native 'taskkill.exe' @('/F', '/PID', "$number") -Quiet | Out-Null
    }
    if (-not (Wait-Status 'Stopped' $stop_patience)) {
        Stop-Setup 'the service cannot be stopped'
    }
}

# Restart-Bridge: restart the service, and tell whether it gets ready: it runs, and
# answers on its port if it did before; and the same process runs five seconds later.
function Restart-Bridge([bool] $HasAnswered) {
    Write-Step '+ restart sebridge'
    Stop-Bridge
    if ((Invoke-Native 'sc.exe' @('start', 'sebridge') -Quiet) -ne 0) {
        Write-Step '! Windows does not start the service'
        return $false
    }
    $end = (Get-Date).AddSeconds($patience)
    while (-not ((Test-Running) -and (-not $HasAnswered -or (Test-Answer)))) {
        if ((Get-Date) -ge $end) {
            return $false
        }
        Start-Sleep -Seconds 1
    }
    $number = Get-ProcessNumber
    Start-Sleep -Seconds 5
    # After a failure Windows starts it again within 3 s: then it runs, as another process.
    if (-not (Test-Running) -or (Get-ProcessNumber) -ne $number) {
        return $false
    }
    [IO.File]::WriteAllText("$versions\started", (Get-Fingerprint))
    return $true
}

# Get-Trial: the version that was in use before one that is tried, and the one before it;
# nothing where no version is tried. An upgrade that was cut off leaves the note.
function Get-Trial {
    $note = "$versions\trial"
    if (Test-Path -LiteralPath $note) {
        $last, $older = [IO.File]::ReadAllText($note).Trim() -split ' ', 2
        if (Test-Path -LiteralPath "$versions\$last\whole") {
            return @($last, "$older")
        }
    }
    return @('', '')
}

# Remove-Trial: the version in use is not tried any more.
function Remove-Trial {
    if (Test-Path -LiteralPath "$versions\trial") {
        Remove-Item -LiteralPath "$versions\trial"
    }
}

# Use-Version: use a version, and go back to the one before if it does not get ready.
function Use-Version([string] $Version) {
    $last, $older = Get-Trial
    if (-not $last) {
        $last = Get-Current
        $older = Get-Previous
        if ($last -and $last -ne $Version) {
            [IO.File]::WriteAllText("$versions\trial", "$last $older")
        }
    }
    $hasAnswered = (Test-Running) -and (Test-Answer)
    Set-Current $Version
    if ($last -and $last -ne $Version) {
        [IO.File]::WriteAllText("$versions\previous", $last) # not one that was only tried
    }
    if (Test-Started) {
        Write-Step '= sebridge runs with all of this'
        Remove-Trial
        return
    }
    $code = Invoke-Native $python @('-I', '-m', 'bridge', 'check', '-c', $config)
    if ($code -eq 0 -and (Restart-Bridge $hasAnswered)) {
        Remove-Trial
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
    Remove-Trial
    if (-not (Restart-Bridge $hasAnswered)) {
        Stop-Setup 'neither version gets ready'
    }
    Stop-Setup "the version before is in use again; what was wrong: $settings\log\sebridge.log"
}
