"""bpslaunch: starts the processes of a job on this machine and ends them together."""
