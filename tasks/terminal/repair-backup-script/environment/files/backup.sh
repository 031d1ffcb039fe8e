#!/bin/sh
# Copies the files of a folder: backup.sh FROM TO
count=0
mkdir $2
for file in $(ls $1); do
    cp $1/$file $2
    count=$((count + 1))
done
echo copied $count files
