#!/bin/sh
# venv.sh FOLDER LOCK[:LOCK…] [MEMBER…]: a virtual environment with exactly what the LOCKs name, and the
# MEMBERs of this workspace in editable form. Does nothing when FOLDER has all of it. Where FOLDER was made
# from the first LOCKs alone, it gets the others, each of which repeats what those before it pin.
set -eu
folder=$1
locks=$(echo "$2" | tr : ' ')
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

# All that the environment depends on: its place, the interpreter and the locks. The members can be
# installed anew without the rest.
basis=$(
    pwd
    "$python" --version
)
with() { # TEXT LOCK: what an environment was made from, after LOCK was added to TEXT
    printf '%s\n' "$1" "$(cat "$2")" "end of $2"
}
wanted=$basis
for lock in $locks; do wanted=$(with "$wanted" "$lock"); done
members=$(for member in "$@"; do cat "$member/pyproject.toml"; done)

look() { # what there is in the folder, and which locks it lacks
    made=$(cat "$folder/made-from" 2>/dev/null || true)
    case $made in
    "$wanted"*) missing= ;; # more than what is wanted does no harm
    *)
        missing=
        so_far=$basis
        for lock in $locks; do
            so_far=$(with "$so_far" "$lock")
            missing="$missing $lock"
            if [ "$made" = "$so_far" ]; then missing=; fi
        done
        ;;
    esac
    lacks_members=
    if [ "$members" != "$(cat "$folder/members" 2>/dev/null || true)" ]; then lacks_members=1; fi
    [ -n "$missing$lacks_members" ]
}
look || exit 0

# One process at a time works on a folder; the next one finds that nothing is left to do. `penstock up
# --demo` reads the number of the process, too: it waits for an environment that is being made.
mkdir -p "$(dirname "$folder")"
until (set -C && echo $$ >"$folder.pid") 2>/dev/null; do
    kill -0 "$(cat "$folder.pid")" 2>/dev/null || rm -f "$folder.pid" # that process was killed
    sleep 1
done
trap 'rm -f "$folder.pid"' EXIT
trap 'exit 1' HUP INT TERM
look || exit 0

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
name=$(basename "$folder")
terminal=
if [ -t 1 ]; then terminal=1; fi
say() { echo "  $name: $*"; }

# pip ARGUMENT…: runs the environment's pip, or the interpreter's for an environment without one.
pip() {
    if [ -e "$folder/bin/pip" ]; then
        "$folder/bin/python" -m pip "$@"
    else
        PIP_PYTHON="$folder/bin/python" "$python" -m pip "$@"
    fi
}

# pip_install HOW_MANY ARGUMENT…: installs so many packages, and says how far it is. What pip has to
# complain of is shown as it is. On a terminal one line is written over and over, elsewhere one for each
# 25 packages.
pip_install() {
    total=$1
    shift
    {
        pip install --progress-bar off "$@" || echo "failed $?"
    } | awk -v total="$total" -v terminal="$terminal" -v name="$name" '
        function say(text) {
            if (terminal) printf "\r  %-70.70s", name ": " text
            else print "  " name ": " text
            fflush()
        }
        /^ *(Collecting|Obtaining) / {
            count++
            if (terminal) say("fetching " count " of " total ": " $2)
            else if (count % 25 == 0) say("fetching " count " of " total)
        }
        /^Installing collected packages/ { say("installing " (count ? count : total)) }
        /^failed / { status = $2 }
        END { if (terminal) printf "\r%72s\r", ""; exit status }
    '
}

echo "Setting up $folder (takes a minute, once)"
# shellcheck disable=SC2086 # file names of ours, without blanks
if [ "$(echo $missing)" = "$(echo $locks)" ]; then
    rm -rf "$folder"
    say "making the environment with $("$python" --version)"
    # An environment with a pip takes 4 s longer. That of an agent server needs none, where the interpreter
    # has a pip that can install into other environments (22.3 or later).
    without=
    if [ $# -eq 0 ] && "$python" -m pip --python "$(command -v "$python")" --version >/dev/null 2>&1; then
        without=--without-pip
    fi
    "$python" -m venv "$folder" $without
    lacks_members=1
fi
for lock in $missing; do
    # The lock names every package. Without --no-deps, pip 23 resolves a dependency with an extra anew,
    # finds a version that was released after the lock was written, and fails since the lock has no hash
    # for it.
    pip_install "$(grep -c '^[^ #].*==' "$lock")" --no-deps --require-hashes -r "$lock"
    if ! complaints=$(pip check); then
        printf '%s\n' "$complaints" "$lock lacks a package on this system: run 'make lock' here" >&2
        exit 1
    fi
done
if [ $# -gt 0 ] && [ -n "$lacks_members" ]; then
    say "adding $*"
    editables=
    for member in "$@"; do editables="$editables -e ./$member"; done
    # The build backend is in the first lock, so nothing is fetched here.
    # shellcheck disable=SC2086 # folder names of ours, without blanks
    pip_install $# --no-deps --no-build-isolation $editables
fi
if [ -n "$missing" ]; then printf '%s\n' "$wanted" >"$folder/made-from"; fi
printf '%s\n' "$members" >"$folder/members"
say "done"
