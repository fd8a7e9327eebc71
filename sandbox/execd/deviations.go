package execd

// Deviation is a promise of the seam that can't be kept over a foreign execd.
type Deviation struct {
	ID     string // stable, in kebab case
	Face   string // "commands", "processes", "files" or "isolated sessions"
	Says   string // what happens instead
	Reason string
	// Clauses are the ids of the clauses of package conform that fail for it,
	// for the Deviations of conform.Options.
	Clauses []string
}

// Deviations lists what the older protocol can't carry, so that a conformance
// suite that runs over a foreign execd knows what to leave out, and readers
// what to expect. Over AstraBox's daemon there is none.
func Deviations() []Deviation {
	var out []Deviation
	for _, d := range deviations() {
		out = append(out, Deviation{d.id, d.face, d.says, d.reason, failing[d.id]})
	}
	return out
}

// failing are the clauses that fail for a deviation. The others are about what
// no clause can try, or has an outcome that varies.
var failing = map[string][]string{
	"large-line":           {"commands.line.large"},
	"kill-by-environment":  {"commands.timeout.bare"},
	"replay-channels":      {"processes.replay.channels"},
	"offsets-between-runs": {"processes.status", "processes.rerun", "processes.rerun.offsets", "processes.buffer.drop"},
	"no-watching":          {"processes.watch", "processes.watch.sends", "processes.watch.starts"},
	"no-block":             {"processes.buffer.block"},
	"buffer":               {"processes.replay.gap"},
	"stdin-count":          {"processes.stdin.count"},
	"stdin-waits":          {"processes.stdin.full", "processes.stdin.control"},
	"stdin-end":            {"processes.stdin.end", "processes.stdin.over"},
}

type deviation struct{ id, face, says, reason string }

func deviations() []deviation {
	return []deviation{
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
		{"file-programs", "files",
			"the image needs sh and the programs of coreutils, findutils and grep, or those of busybox; without one of them files are refused as unsupported",
			"the daemon's own calls expand names, write in place and lose bits"},
		{"file-checks", "files",
			"without flock in the image, two writers with the same IfUnchanged may both succeed, and so may two calls of MakeDir or Move to one place",
			"between a shell's look and its rename there is time"},
		{"file-moves", "files",
			"Move may replace what a program of the sandbox puts at its destination in the instant after the look, where mv is busybox's or older than coreutils 8.30",
			"such an mv looks before it renames"},
		{"file-swaps", "files",
			"a FIFO that a program of the sandbox puts in place of a file in the instant before its download holds up Open until its context ends",
			"the daemon opens files by name"},
		{"isolated-output", "isolated sessions",
			"all output comes as stdout and as whole lines; blank lines are lost", "the daemon sends lines, and joins the streams"},
		{"isolated-exit", "isolated sessions",
			"a command without Dir and Env that exits, or replaces the shell, ends its session; the error says so", "the session is one shell"},
		{"isolated-deadline", "isolated sessions",
			"a deadline, or a cancelled context, may end the session with the command; after a deadline the error says so", "the daemon's interrupt reaches the session's first process"},
		{"isolated-processes", "isolated sessions",
			"processes are refused as unsupported", "the daemon keeps no processes in a session"},
		{"isolated-source", "isolated sessions",
			"a workspace is seen at its own path only: another is refused as unsupported", "the daemon has no such option that its files could follow"},
		{"isolated-owner", "isolated sessions",
			"what Files makes without naming an owner is root's", "the daemon's files know nothing of sessions"},
		{"isolated-kept", "isolated sessions",
			"variables that aren't exported, functions and shell options last too, and what a command leaves on its own may", "the session is one shell"},
		{"beneath-races", "files",
			"below a root that others may change, a directory swapped for a link while Open, List, Search or RemoveAll runs can lead out of it, and an error may tell whether a place outside exists",
			"a shell can't look names up without following links"},
		{"removal-races", "files",
			"RemoveAll may follow a link that is put in place of a directory meanwhile, where rm is busybox's", "that rm goes by paths"},
		{"file-room", "files",
			"a write needs room for its content in /run/astrabox-execd too, and once more where that is another mount than the target's",
			"the daemon stores by name only, so it stores where nobody else can look"},
		{"unfinished-names", "files",
			"while a write or MakeDir puts its result in place, a name .astrabox-*.tmp can be seen beside it; one is left when the script is killed then and its client is lost too",
			"a shell has no files without a name"},
		{"large-trees", "files",
			"a listing or search is refused when its tree takes more than 128 MiB to describe, and it or RemoveAll ends as unreachable after 10 minutes",
			"the client puts the entries in order"},
		{"files-without-size", "files",
			"a file without a size, such as those of /proc, is read up to 16 MiB, and one that blocks is unreachable after 20 s", "it is copied before the daemon can send it"},
	}
}
