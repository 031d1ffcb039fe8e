#!/bin/sh
set -e
cat >/app/render.sh <<'END'
#!/bin/sh
awk '
    FNR == 1 {files++}
    files == 1 {
        if ($0 ~ /^#/ || $0 == "") next
        at = index($0, "="); value[substr($0, 1, at - 1)] = substr($0, at + 1); next
    }
    {
        rest = $0; line = ""
        while (match(rest, /\{\{[A-Z0-9_]+\}\}/)) {
            name = substr(rest, RSTART + 2, RLENGTH - 4)
            if (!(name in value)) {print "missing " name > "/dev/stderr"; failed = 1; exit 1}
            line = line substr(rest, 1, RSTART - 1) value[name]
            rest = substr(rest, RSTART + RLENGTH)
        }
        output = output line rest "\n"
    }
    END {if (!failed) printf "%s", output}
' "$1" "$2"
END
