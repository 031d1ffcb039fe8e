#!/bin/sh
# In place of the installer of uv: puts the uv of this box where the installer would put its own, whatever version was
# asked for.
set -eu
programs=/usr/local/lib/openclaw-rl/programs
folder=${UV_INSTALL_DIR:-${XDG_BIN_HOME:-$HOME/.local/bin}}
mkdir -p "$folder"
ln -sf "$programs/uv" "$folder/uv"
ln -sf "$programs/uvx" "$folder/uvx"
printf 'case ":${PATH}:" in\n*:"%s":*) ;;\n*) export PATH="%s:$PATH" ;;\nesac\n' "$folder" "$folder" >"$folder/env"
