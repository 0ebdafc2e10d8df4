# What a VM Application runs: install (also for an update) and remove. The archive is
# unpacked into a folder; the configuration file of the application lies above it.
#   powershell.exe -NoProfile -ExecutionPolicy Bypass -File vm-application.ps1 install|remove
param([string] $Action = '')
. "$PSScriptRoot\lib.ps1"

$given = Join-Path (Split-Path -Parent $kit) 'bridge.toml'
$note = "$config.fleet" # the sum of what was written here last
$before = "$config.before"

function Get-Sum([string] $Path) {
    if (Test-Path -LiteralPath $Path) {
        return (Get-FileHash -Algorithm SHA256 -LiteralPath $Path).Hash
    }
    return ''
}

# Test-Own: the file may be replaced: nobody has changed what was written here, or it is
# the example that install.ps1 puts there.
function Test-Own {
    if (-not (Test-Path -LiteralPath $config)) {
        return $true
    }
    $own = @((Get-Sum "$kit\bridge.toml"))
    if (Test-Path -LiteralPath $note) {
        $own += [IO.File]::ReadAllText($note)
    }
    return $own -contains (Get-Sum $config)
}

# Copy-Given: take the configuration file of the application, where there is one.
function Copy-Given {
    if (-not (Test-Path -LiteralPath $given)) {
        Write-Step "= ${config}: the application brings no configuration"
    }
    elseif ((Get-Sum $given) -eq (Get-Sum $config)) {
        Write-Step "= $config"
        [IO.File]::WriteAllText($note, (Get-Sum $config))
    }
    elseif (Test-Own) {
        Write-Step "+ write $config"
        Install-Folder
        if (Test-Path -LiteralPath $config) {
            Copy-Item -LiteralPath $config -Destination $before
        }
        Copy-Item -LiteralPath $given -Destination $config
        [IO.File]::WriteAllText($note, (Get-Sum $config))
    }
    else {
        Write-Step "! $config was changed by hand, and stays"
    }
}

# Undo-Given: the new configuration or the new version is not right: as it was before.
function Undo-Given {
    if (-not (Test-Path -LiteralPath $before)) {
        return
    }
    Write-Step "! $config is again what it was"
    Move-Item -Force -LiteralPath $before -Destination $config
    [IO.File]::WriteAllText($note, (Get-Sum $config))
    if (Test-Service) {
        Restart-Bridge $false | Out-Null
    }
}

# Install-Given: install the version, and tell whether that went well. A configuration that
# the application brings must be one that check accepts, the first one too.
function Install-Given {
    try {
        Copy-Given
        & "$kit\install.ps1" | Out-Host
        if ($LASTEXITCODE -ne 0) {
            return $false
        }
    }
    catch {
        Write-Step "! $($_.Exception.Message)"
        return $false
    }
    if (-not (Test-Path -LiteralPath $given)) {
        return $true
    }
    return (Invoke-Native $python @('-I', '-m', 'bridge', 'check', '-c', $config)) -eq 0
}

Assert-Administrator
Enter-Setup
switch ($Action) {
    'install' {
        if (Test-Path -LiteralPath $before) {
            Remove-Item -LiteralPath $before
        }
        if (-not (Install-Given)) {
            Undo-Given
            exit 1
        }
        if (Test-Path -LiteralPath $before) {
            Remove-Item -LiteralPath $before
        }
    }
    'remove' {
        & "$kit\uninstall.ps1"
        exit $LASTEXITCODE
    }
    default {
        Stop-Setup 'usage: vm-application.ps1 install|remove' 2
    }
}
exit 0
