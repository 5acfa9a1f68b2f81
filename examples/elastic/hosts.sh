#!/bin/sh
# A discovery script whose cluster grows and shrinks: three slots of this host for 20 seconds, then two, and so on.
# A real one asks the cluster's scheduler. perseusrun runs it once a second.
if [ $(($(date +%s) / 20 % 2)) -eq 0 ]; then
    echo localhost:3
else
    echo localhost:2
fi
