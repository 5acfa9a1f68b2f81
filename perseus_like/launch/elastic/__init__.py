"""Jobs whose workers come and go: `perseusrun --min-np 2 --max-np 8 --host-discovery-script d.sh python train.py`."""
