package execd

// Deviation is a promise of the seam that can't be kept over a foreign execd.
type Deviation struct {
	ID     string // stable, in kebab case
	Face   string // "commands", "processes" or "files"
	Says   string // what happens instead
	Reason string
}

// Deviations lists what the older protocol can't carry, so that a conformance
// suite that runs over a foreign execd knows what to leave out, and readers
// what to expect. Over AstraBox's daemon there is none.
func Deviations() []Deviation {
	return []Deviation{
		{"command-outlives-lost-client", "commands",
			"a command whose client is lost before it could kill it goes on until its timeout, or for ever without one",
			"a dropped connection stops nothing"},
		{"kill-by-environment", "commands",
			"a process that has cleared its environment and left the process group survives the kill",
			"the daemon kills one process group; the rest is found by a variable of theirs"},
		{"variable-names", "commands",
			"a variable whose name isn't a shell's is refused", "a shell exports the environment"},
		{"large-line", "commands",
			"a line of 128 KiB or more fails with status 126", "it is one argument of a program"},
		{"command-line-names", "processes",
			"the same limits of kill, variables and line length hold", "as for commands"},
		{"replay-channels", "processes",
			"replayed output is all of Stdout", "the replay doesn't say what was stderr"},
		{"offsets-between-runs", "processes",
			"the next run's first offset, and Status.Next after an end, are some bytes more than the end of the run's output",
			"the end of a run is marked in the output"},
		{"signal-from-status", "processes",
			"an exit status of 129 to 143 is reported as the signal of that number", "a shell doesn't tell them apart"},
		{"no-watching", "processes",
			"ReadOnly is refused as unsupported", "the daemon has no viewers"},
		{"no-block", "processes",
			"a process of kind Block isn't held back while nobody is attached: output beyond 1 MiB goes, and attaching to it gives a gap",
			"the daemon overwrites its oldest output"},
		{"buffer", "processes", "every process has 1 MiB of replay", "the daemon's buffer has one size"},
		{"stdin-count", "processes", "Status.Stdin is -1", "the daemon doesn't count it"},
		{"stdin-waits", "processes",
			"Send waits once about 96 KiB are unread, rather than 1 MiB", "behind more, the daemon hears nothing"},
		{"stdin-end", "processes",
			"CloseStdin is refused as unsupported, unless the process has a terminal", "a pipe's input can't be ended"},
		{"late-gap", "processes",
			"a gap that arises while attaching is found after the process was started or taken over", "only the replay tells it"},
		{"killed-shell", "processes",
			"a process whose shell was killed with it ends with SIGKILL and doesn't run again", "the shell holds its environment"},
		{"accounts-from-files", "processes",
			"accounts are those of /etc/passwd and /etc/group", "the daemon can't run a session as another user"},
		{"no-files", "files", "files are refused as unsupported", "the older file calls lose modes, names and atomicity"},
	}
}
