# Runs inside a box: reads requests from standard input and starts each command in a session of its own.
# Arguments: open files, CPU seconds, processes, address space in KiB (each a number or "unlimited"), and the name of the
# lease, by which the owner finds the processes of a box that was half open when an earlier owner was killed.
ulimit -c 0
ulimit -n "$1"
ulimit -t "$2"
ulimit -v "$4"
ulimit -p "$3" 2>/dev/null || ulimit -u "$3" # dash and busybox; bash
echo ready
read -r _ # the owner has moved this process to the control groups of the box
while read -r action number; do
    case $action in
    run)
        setsid /bin/sh /run/box/run_command.sh "$number" &
        eval "process_$number=$!"
        ;;
    kill)
        eval "process=\$process_$number"
        kill -9 "-$process" || kill -9 "$process"
        echo 137 1<>"/run/box/$number/end" # for reading, too: it then opens without a reader
        ;;
    forget)
        eval "process=\$process_$number"
        wait "$process"
        unset "process_$number"
        ;;
    esac
done
