#!/bin/sh
# venv.sh FOLDER LOCK [MEMBER…]: a virtual environment with exactly what LOCK names, and the
# MEMBERs of this workspace in editable form. Does nothing when FOLDER was made from the same.
set -eu
folder=$1
lock=$2
shift 2

# The locks were resolved on 3.11, so that comes first. PYTHON=… overrides the choice.
for python in ${PYTHON:-} python3.11 python3.12 python3.13 python3; do
    # A name may be there and not run: a version manager's shim.
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break
    python=
done
if [ -z "$python" ]; then
    echo "Penstock needs Python 3.11 or later: none is on the PATH (or set PYTHON=…)" >&2
    exit 1
fi

# All that the environment depends on: its place, the interpreter, the lock and the members.
wanted=$(
    pwd
    "$python" --version
    cat "$lock"
    for member in "$@"; do cat "$member/pyproject.toml"; done
)
if [ "$wanted" = "$(cat "$folder/made-from" 2>/dev/null)" ]; then
    exit 0
fi

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
terminal=
if [ -t 1 ]; then terminal=1; fi

# pip_install HOW_MANY ARGUMENT…: installs so many packages, and says how far it is. What pip has to complain of is shown as
# it is. On a terminal one line is written over and over, elsewhere one for each 25 packages.
pip_install() {
    total=$1
    shift
    {
        "$folder/bin/python" -m pip install --progress-bar off "$@" || echo "failed $?"
    } | awk -v total="$total" -v terminal="$terminal" '
        function say(text) {
            if (terminal) printf "\r  %-70.70s", text
            else print "  " text
            fflush()
        }
        /^ *(Collecting|Obtaining) / {
            count++
            if (terminal) say("fetching " count " of " total ": " $2)
            else if (count % 25 == 0) say("fetching " count " of " total)
        }
        /^Installing collected packages/ { say("installing " total) }
        /^failed / { status = $2 }
        END { if (terminal) printf "\r%72s\r", ""; exit status }
    '
}

echo "Setting up $folder from $lock (takes a minute or two, once)"
rm -rf "$folder"
echo "  making the environment with $("$python" --version)"
"$python" -m venv "$folder"
# The lock names every package. Without --no-deps, pip 23 resolves a dependency with an extra anew, finds
# a version that was released after the lock was written, and fails since the lock has no hash for it.
pip_install "$(grep -c '^[^ #].*==' "$lock")" --no-deps --require-hashes -r "$lock"
if ! complaints=$("$folder/bin/python" -m pip check); then
    printf '%s\n' "$complaints" "$lock lacks a package on this system: run 'make lock' here" >&2
    exit 1
fi
editables=
for member in "$@"; do editables="$editables -e ./$member"; done
if [ -n "$editables" ]; then
    echo "  adding $*"
    # The build backend is in the lock, so nothing is fetched here.
    # shellcheck disable=SC2086 # folder names of ours, without blanks
    pip_install $# --no-deps --no-build-isolation $editables
fi
printf '%s\n' "$wanted" >"$folder/made-from"
echo "  done: $folder"
