#!/bin/sh
# The script is run on files that the model has not seen; only what it leaves counts.
work=$(mktemp -d) && mkdir "$work/in there" && cd "$work/in there" || exit 1
show() { find . -type f -printf '%P\n' | LC_ALL=C sort | while IFS= read -r f; do echo "$f=$(cat "$f")"; done; }
run() { (cd / && timeout 10 sh /app/rotate.sh "$work/in there/a b.log" "$1" >/dev/null 2>&1); }
for n in 1 2 4 10 12; do echo "$n" >"a b.log.$n"; done
for n in old 1.gz 01; do echo "$n" >"a b.log.$n"; done
echo new >"a b.log"; chmod 640 "a b.log"
before=$(show)
if run 0; then exit 1; fi
if run 2x; then exit 1; fi
if run ""; then exit 1; fi
[ "$(show)" = "$before" ] || exit 1
run 11 || exit 1
[ "$(show)" = "$(cat /tests/first.txt)" ] || exit 1
[ "$(stat -c %a 'a b.log')" = 640 ] || exit 1
run 11 || exit 1
[ "$(show)" = "$(cat /tests/first.txt)" ] || exit 1
echo newer >"a b.log"
run 2 || exit 1
[ "$(show)" = "$(cat /tests/second.txt)" ] || exit 1
rm "a b.log"
if run 2; then exit 1; fi
[ ! -e "a b.log" ] || exit 1

exit 0
