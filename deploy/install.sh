#!/bin/sh
# Installs Downpour's program, manual and completions: sh install.sh [--prefix DIR] [--from DIR|URL] [--version V]
# Without --prefix: /usr/local for root, else ~/.local. What is fetched is checked against SHA256SUMS of the same place, so
# take this script and --from from a place that you trust.
set -eu

version=@VERSION@
from=
prefix=

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

while [ $# -gt 0 ]; do
    case $1 in
        --prefix | --from | --version)
            [ $# -ge 2 ] || fail "$1 needs a value"
            case $1 in
                --prefix) prefix=$2 ;;
                --from) from=$2 ;;
                --version) version=$2 ;;
            esac
            shift 2
            ;;
        -h | --help)
            sed -n '2,4s/^# //p' "$0"
            exit 0
            ;;
        *) fail "unknown argument '$1'; known are --prefix, --from, --version" ;;
    esac
done

[ "$(uname -s)" = Linux ] || fail "this is $(uname -s); there is a program for Linux only"
case $(uname -m) in
    x86_64 | amd64) ;;
    *) fail "there is no program for $(uname -m) yet; build it: cargo install --path crates/cli" ;;
esac
name=downpour-$version-x86_64-linux
[ -n "$from" ] || from=https://github.com/downpour-rs/downpour/releases/download/v$version
if [ -z "$prefix" ]; then
    if [ "$(id -u)" = 0 ]; then prefix=/usr/local; else prefix=${HOME:?}/.local; fi
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

get() {
    case $from in
        http://* | https://*)
            if command -v curl >/dev/null 2>&1; then
                curl -fsSL --retry 3 -o "$work/$1" "$from/$1" || fail "cannot fetch $from/$1"
            elif command -v wget >/dev/null 2>&1; then
                wget -q -O "$work/$1" "$from/$1" || fail "cannot fetch $from/$1"
            else
                fail "needed: curl or wget"
            fi
            ;;
        *) cp "$from/$1" "$work/$1" || fail "there is no $from/$1" ;;
    esac
}

get SHA256SUMS
get "$name.tar.gz"
grep "  $name.tar.gz\$" "$work/SHA256SUMS" >"$work/sum" || fail "SHA256SUMS does not list $name.tar.gz"
(cd "$work" && sha256sum -c sum >/dev/null 2>&1) || fail "$name.tar.gz is not what SHA256SUMS says: do not use it"
tar -xzf "$work/$name.tar.gz" -C "$work"

mkdir -p "$prefix/bin" "$prefix/share" || fail "cannot write to $prefix; name another place with --prefix"
cp -R "$work/$name/share/." "$prefix/share/"
# Beside its place and renamed: a program that runs is not written over.
cp "$work/$name/bin/downpour" "$prefix/bin/.downpour.new"
chmod 755 "$prefix/bin/.downpour.new"
mv -f "$prefix/bin/.downpour.new" "$prefix/bin/downpour"

echo "installed $("$prefix/bin/downpour" -V) to $prefix/bin/downpour"
case :$PATH: in
    *":$prefix/bin:"*) ;;
    *) echo "$prefix/bin is not in PATH: export PATH=\"$prefix/bin:\$PATH\"" ;;
esac
echo "first steps: downpour demo mnist"
