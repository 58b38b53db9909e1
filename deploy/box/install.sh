#!/bin/sh
# Installs both services into PREFIX, in an environment of its own, beside whatever serves models on this machine.
# Writes nothing outside of PREFIX and starts nothing; prints what to do next. Run it again to upgrade.
set -eu

usage() {
    cat <<'TEXT'
usage: install.sh PREFIX [options]

  PREFIX            folder to install into; made if it is not there
  --source PATH     what to install: a checkout or a wheel   [the checkout that holds this script]
  --python PROGRAM  Python 3.11 or later for the environment [python3]
  --torch SPEC      torch to install first, e.g. torch==2.13.0, or none to leave it to pip [torch]
  --extra NAME      extra of the package: services, target, drafter, serving [services]
  --user NAME       account that the units run as             [the account that runs this script]
  --sglang-unit U   unit to start after                       [sglang.service]
  --sglang-url URL  its health route, waited for before GPU memory is taken; none to not wait
                                                              [http://127.0.0.1:30000/health]
TEXT
}

fail() {
    echo "error: $1" >&2
    exit 2
}

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
source_path=$(CDPATH='' cd -- "$here/../.." && pwd)
python=python3
torch=torch
extra=services
account=$(id -un)
sglang_unit=sglang.service
sglang_url=http://127.0.0.1:30000/health
prefix=

while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage; exit 0 ;;
        --source | --python | --torch | --extra | --user | --sglang-unit | --sglang-url)
            [ $# -ge 2 ] || fail "$1 needs a value"
            case $1 in
                --source) source_path=$2 ;;
                --python) python=$2 ;;
                --torch) torch=$2 ;;
                --extra) extra=$2 ;;
                --user) account=$2 ;;
                --sglang-unit) sglang_unit=$2 ;;
                --sglang-url) sglang_url=$2 ;;
            esac
            shift 2
            ;;
        -*) fail "unknown option $1 (see --help)" ;;
        *)
            [ -z "$prefix" ] || fail "two prefixes: $prefix and $1"
            prefix=$1
            shift
            ;;
    esac
done

[ -n "$prefix" ] || { usage >&2; exit 2; }
case $prefix in *' '* | *'|'* | *'&'*) fail "PREFIX '$prefix': blanks, | and & do not work in unit files" ;; esac
[ -e "$source_path" ] || fail "--source $source_path: no such file or folder"
command -v "$python" >/dev/null 2>&1 || fail "--python $python: no such program"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "--python $python: 3.11 or later is needed"
"$python" -c 'import venv, ensurepip' 2>/dev/null || fail "--python $python: has no venv (Debian: apt-get install python3-venv)"

mkdir -p "$prefix"
prefix=$(CDPATH='' cd -- "$prefix" && pwd)
if [ ! -e "$prefix/.tauscope" ] && [ -n "$(ls -A "$prefix")" ]; then
    fail "$prefix is not empty and was not made by this script; choose an empty folder"
fi
touch "$prefix/.tauscope"

# The environment of whoever runs this (SGLang's own, perhaps) must neither leak in nor be changed.
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV PIP_TARGET PIP_PREFIX PIP_USER CONDA_PREFIX 2>/dev/null || true
export PYTHONNOUSERSITE=1 PIP_REQUIRE_VIRTUALENV=1 PIP_DISABLE_PIP_VERSION_CHECK=1

if [ ! -x "$prefix/venv/bin/python" ]; then
    echo "making the environment $prefix/venv"
    "$python" -m venv "$prefix/venv"
fi
pip="$prefix/venv/bin/python -m pip install --quiet"
if [ "$torch" != none ]; then
    echo "installing $torch"
    $pip "$torch"
fi
echo "installing tauscope[$extra] from $source_path"
# Not editable: the running services must not change with the checkout. Wheels of the same version are replaced.
$pip "$source_path[$extra]"
$pip --force-reinstall --no-deps "$source_path"

mkdir -p "$prefix/bin" "$prefix/etc" "$prefix/units" "$prefix/var"
chmod 700 "$prefix/var"
install -m 755 "$here/wait-ready.sh" "$prefix/bin/wait-ready"
for name in tauscope tauscope-target tauscope-drafter; do
    ln -sf "../venv/bin/$name" "$prefix/bin/$name"
done
for name in target drafter; do
    if [ -e "$prefix/etc/$name.env" ]; then
        echo "kept $prefix/etc/$name.env"
    else
        sed "s|@PREFIX@|$prefix|g" "$here/$name.env" >"$prefix/etc/$name.env"
        chmod 600 "$prefix/etc/$name.env"
    fi
done
wait_line="ExecStartPre=$prefix/bin/wait-ready $sglang_url 1800"
[ "$sglang_url" != none ] || wait_line="# no other engine to wait for"
for unit in "$here"/units/*; do
    sed -e "s|@PREFIX@|$prefix|g" -e "s|@USER@|$account|g" -e "s|@SGLANG_UNIT@|$sglang_unit|g" \
        -e "s|@WAIT_FOR_SGLANG@|$wait_line|g" "$unit" >"$prefix/units/$(basename "$unit")"
done

"$prefix/bin/tauscope" version >/dev/null || fail "the installation does not run"

cat <<TEXT
installed into $prefix

next:
  1. edit    $prefix/etc/target.env and $prefix/etc/drafter.env: checkpoints, GPU memory, drafters
  2. copy    sudo cp $prefix/units/tauscope* /etc/systemd/system/ && sudo systemctl daemon-reload
  3. start   sudo systemctl enable --now tauscope-target tauscope-drafter
  4. look    $prefix/bin/tauscope doctor; journalctl -u tauscope-target
remove: sudo systemctl disable --now tauscope-target tauscope-drafter; sudo rm /etc/systemd/system/tauscope*; rm -r $prefix
TEXT
