#!/bin/sh
set -e
cat >/app/rotate.sh <<'END'
#!/bin/sh
file=$1 keep=$2
case "$keep" in '' | *[!0-9]* | 0*) exit 1 ;; esac
[ -f "$file" ] || exit 1
[ -s "$file" ] || exit 0
numbers=$(for path in "$file".*; do
    number=${path#"$file".}
    case "$number" in '' | *[!0-9]* | 0*) ;; *) echo "$number" ;; esac
done | sort -rn)
for number in $numbers; do
    if [ "$number" -ge "$keep" ]; then rm -f "$file.$number"; else mv "$file.$number" "$file.$((number + 1))"; fi
done
cp -p "$file" "$file.1" && : >"$file"
END
