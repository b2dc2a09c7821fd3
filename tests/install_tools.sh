#!/bin/sh
# Installs what the tests of storage faults need besides Python: strace, and fiu-run from fiu-utils.
missing=""
command -v strace >/dev/null || missing="strace"
command -v fiu-run >/dev/null || missing="${missing:+$missing }fiu-utils"
[ -z "$missing" ] && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    get() { apt-get install --yes -qq --no-install-recommends $missing >/dev/null 2>&1; }
    # The lists of packages that are there mostly do.
    get || { apt-get update -qq >/dev/null 2>&1; get; } && exit 0
fi
echo "some tests are skipped; to run them too: sudo apt-get install $missing" >&2
