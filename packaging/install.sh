#!/bin/sh
# Installs Belljar: the program, its shell completions and its man pages.
#
#     sh install.sh [--from DIRECTORY-OR-URL] [--prefix DIRECTORY]
#     sh install.sh --uninstall [--prefix DIRECTORY]
#
# Nothing is unpacked before the archive has the checksum that SHA256SUMS, beside it, says. Every file that is installed
# is written down in PREFIX/share/belljar/installed, and --uninstall removes those and nothing else.
set -eu

usage() {
    cat <<'END'
usage: sh install.sh [--from DIRECTORY-OR-URL] [--prefix DIRECTORY]
       sh install.sh --uninstall [--prefix DIRECTORY]

  --from DIRECTORY-OR-URL   where the archive and SHA256SUMS are [default: the directory of install.sh]
  --prefix DIRECTORY        where to install to [default: /usr/local if you may write there, else ~/.local]
  --uninstall               remove what was installed
  --help                    print this
END
}

# The last line calls it, so a script that was cut off on its way does nothing.
main() {
    action=install from='' prefix=''
    while [ $# -gt 0 ]; do
        case $1 in
        --from | --prefix)
            [ -n "${2:-}" ] || fail "$1 needs a value" 'sh install.sh --help'
            case $1 in --from) from=$2 ;; *) prefix=$2 ;; esac
            shift
            ;;
        --from=?*) from=${1#*=} ;;
        --prefix=?*) prefix=${1#*=} ;;
        --uninstall) action=uninstall ;;
        --help | -h) usage && exit 0 ;;
        *) fail "there is no option '$1'" 'sh install.sh --help' ;;
        esac
        shift
    done
    case $prefix in '' | /*) ;; *) prefix=$PWD/$prefix ;; esac
    prefix=${prefix%/}
    "$action"
}

fail() { # MESSAGE HINT
    printf 'error: %s\nhint: %s\n' "$1" "$2" >&2
    exit 1
}

warn() { printf 'warning: %s\n' "$1" >&2; }

# ------------------------------------------------------------------------------------------------------------ installing

install() {
    check_system
    [ -n "$from" ] || from=$(beside_this_script)
    [ -n "$prefix" ] || prefix=$(default_prefix)
    { may_write "$prefix/bin" && may_write "$prefix/share"; } ||
        fail "you may not write to $prefix" 'name another directory, such as --prefix ~/.local, or run this as root'
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    fetch SHA256SUMS
    archive=$(archive_name)
    fetch "$archive"
    verify "$archive"
    tar -xzf "$work/$archive" -C "$work" || fail "cannot unpack $archive" 'tar and gzip are needed'
    install_files "$work/${archive%.tar.gz}"
    report
}

check_system() {
    system=$(uname -s) machine=$(uname -m)
    case $system in
    Linux) ;;
    Darwin) elsewhere macOS 'in a Linux virtual machine, or on a Linux server' ;;
    MINGW* | MSYS* | CYGWIN*) elsewhere Windows 'in WSL2, or on a Linux server' ;;
    *) elsewhere "$system" 'on a Linux server' ;;
    esac
    case $machine in
    x86_64 | amd64) machine=x86_64 ;;
    aarch64 | arm64) machine=aarch64 ;;
    *) fail "there is no package of Belljar for $machine" 'build it from its sources: make install' ;;
    esac
}

elsewhere() { # SYSTEM WHERE
    fail "Belljar makes its sandboxes with the Linux kernel, so it does not run on $1" \
        "run 'belljar serve' $2, and call it from here with the Python or npm package and BELLJAR_URL=http://HOST:8787"
}

# When a shell reads this from a pipe, there is no such directory.
beside_this_script() {
    directory=$(dirname -- "$0")
    if [ ! -f "$directory/SHA256SUMS" ] || [ ! -f "$directory/install.sh" ]; then
        fail 'there is no public address yet from which Belljar can be downloaded' \
            "name where the archive and SHA256SUMS are: --from DIRECTORY-OR-URL ('make packages' leaves them in dist/)"
    fi
    printf '%s\n' "$directory"
}

default_prefix() {
    if may_write /usr/local/bin && may_write /usr/local/share; then
        echo /usr/local
    else
        [ -n "${HOME:-}" ] || fail 'HOME is not set, and you may not write to /usr/local' 'name a directory: --prefix DIRECTORY'
        printf '%s\n' "$HOME/.local"
    fi
}

may_write() { # DIRECTORY: which may have to be made
    place=$1
    while [ ! -e "$place" ]; do place=$(dirname -- "$place"); done
    [ -d "$place" ] && [ -w "$place" ]
}

fetch() { # NAME: from the directory or the URL into $work
    case $from in
    http://* | https://*) download "${from%/}/$1" "$work/$1" ;;
    *://*) fail "cannot download from $from" 'use a directory, or a URL that begins with https:// or http://' ;;
    *) cp -- "$from/$1" "$work/$1" 2>/dev/null || fail "cannot read $from/$1" "'make packages' leaves it in dist/" ;;
    esac
}

download() { # URL FILE
    if command -v curl >/dev/null 2>&1; then
        curl --fail --silent --show-error --location --output "$2" "$1"
    elif command -v wget >/dev/null 2>&1; then
        wget -q -O "$2" "$1"
    else
        fail 'there is neither curl nor wget' 'install one of them, or download the files yourself and use --from DIRECTORY'
    fi || fail "cannot download $1" 'the URL has to be that of the directory with the archive and SHA256SUMS'
}

# The one archive for this machine. The pattern allows no directory in its name.
archive_name() {
    found=$(sed -n "s/^[0-9a-f]\{64\} [ *]\(belljar-[0-9][0-9A-Za-z.+~-]*-$machine-linux\.tar\.gz\)\$/\1/p" "$work/SHA256SUMS")
    case $found in
    '') fail "$from has no archive for $machine" 'build it from its sources: make install' ;;
    *"
"*) fail "$from has several archives for $machine" 'leave one of them in SHA256SUMS' ;;
    esac
    printf '%s\n' "$found"
}

verify() { # NAME
    expected=$(sed -n "s/^\([0-9a-f]\{64\}\) [ *]$1\$/\1/p" "$work/SHA256SUMS")
    hash=$(hasher)
    actual=$("$hash" "$work/$1" | cut -d ' ' -f 1)
    [ "$actual" = "$expected" ] ||
        fail "$1 is not what SHA256SUMS says: its checksum is $actual, and not $expected" \
            'nothing was installed; download it again, and if that does not help, do not trust where it comes from'
}

hasher() { # the function that prints a checksum and more
    for program in sha256sum shasum openssl; do
        if command -v "$program" >/dev/null 2>&1; then
            echo "by_$program"
            return
        fi
    done
    fail 'nothing here can compute a checksum, so the archive cannot be verified' 'install sha256sum (coreutils) or openssl'
}
by_sha256sum() { sha256sum <"$1"; }
by_shasum() { shasum -a 256 <"$1"; }
by_openssl() { openssl dgst -sha256 -r <"$1"; }

install_files() { # DIRECTORY: with bin and share
    record=$prefix/share/belljar/installed
    (cd "$1" && find bin share -type f | sort) >"$work/files"
    # What an earlier version installed and this one does not have.
    if [ -f "$record" ]; then
        cp -- "$record" "$work/before"
        sed -n 's/^file //p' "$record" | grep -vxF -f "$work/files" >"$work/obsolete" || true
    fi
    : >"$work/record"
    while IFS= read -r file; do
        make_directory "$(dirname -- "$file")"
        # A running program cannot be written to, but another one can take its place.
        { cp -- "$1/$file" "$prefix/$file.new" && chmod "$(mode_of "$file")" "$prefix/$file.new" &&
            mv -f -- "$prefix/$file.new" "$prefix/$file"; } || fail "cannot write $prefix/$file" 'is the disk full?'
        echo "file $file" >>"$work/record"
    done <"$work/files"
    make_directory share/belljar
    merge_records >"$record.new" && mv -f -- "$record.new" "$record"
    [ ! -s "$work/obsolete" ] || remove_files <"$work/obsolete"
}

mode_of() { # FILE
    case $1 in bin/*) echo 755 ;; *) echo 644 ;; esac
}

make_directory() { # NAME beneath the prefix: writes down each directory that was not there, the outermost first
    missing=''
    directory=$prefix/$1
    while [ ! -d "$directory" ]; do
        missing="directory $directory
$missing"
        directory=$(dirname -- "$directory")
    done
    printf '%s' "$missing" >>"$work/record"
    mkdir -p -- "$prefix/$1" || fail "cannot make $prefix/$1" 'name another directory with --prefix'
}

# An update finds its directories there, but they are still those that the first installation made.
merge_records() {
    sed '/^directory /!d' "$work/before" 2>/dev/null || true
    cat "$work/record"
}

report() {
    printf 'installed %s to %s, with completions for bash, zsh and fish, and man pages\n' \
        "$("$prefix/bin/belljar" --version)" "$prefix/bin/belljar"
    printf 'to remove it: sh install.sh --uninstall --prefix %s\n' "$prefix"
    case :${PATH:-}: in
    *:"$prefix/bin":*)
        found=$(command -v belljar || true)
        [ "$found" = "$prefix/bin/belljar" ] || warn "another belljar comes first on your PATH: $found"
        ;;
    *) warn "$prefix/bin is not on your PATH; add it: export PATH=\"$prefix/bin:\$PATH\"" ;;
    esac
    printf '\nwhat this machine can guarantee (belljar doctor):\n\n'
    "$prefix/bin/belljar" doctor || warn 'Belljar is installed, but this machine lacks something: see above'
}

# ---------------------------------------------------------------------------------------------------------- uninstalling

uninstall() {
    [ -z "$from" ] || fail '--uninstall takes no --from' 'sh install.sh --uninstall [--prefix DIRECTORY]'
    [ -n "$prefix" ] || prefix=$(installed_prefix)
    record=$prefix/share/belljar/installed
    [ -f "$record" ] ||
        fail "there is no record that this script installed Belljar to $prefix" 'name the directory: --prefix DIRECTORY'
    [ -w "$prefix/bin" ] || fail "you may not write to $prefix/bin" 'run this as the user who installed Belljar'
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    cp -- "$record" "$work/record"
    { sed -n 's/^file //p' "$work/record" && echo share/belljar/installed; } | remove_files
    # The innermost come first, and those that have something else in them stay.
    sed -n 's/^directory //p' "$work/record" | sort -r | while IFS= read -r directory; do
        rmdir -- "$directory" 2>/dev/null || true
    done
    printf 'removed Belljar from %s\n' "$prefix"
    state=${BELLJAR_STATE_DIR:-${XDG_STATE_HOME:-${HOME:-}/.local/state}/belljar}
    [ ! -d "$state" ] || printf 'what it remembers is still in %s\n' "$state"
}

installed_prefix() {
    for candidate in /usr/local "${HOME:-}/.local"; do
        if [ -f "$candidate/share/belljar/installed" ]; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    fail 'this script has not installed Belljar to /usr/local or ~/.local' 'name the directory: --prefix DIRECTORY'
}

remove_files() { # reads names beneath the prefix
    while IFS= read -r file; do
        case /$file/ in */../*) continue ;; esac
        rm -f -- "$prefix/$file"
    done
}

main "$@"
