package execd_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/astrabox/astrabox/sandbox/conform"
	"github.com/astrabox/astrabox/sandbox/execd"
	"github.com/astrabox/astrabox/sandbox/execd/internal/quirk"
	"github.com/astrabox/astrabox/sandbox/sandboxtest"
)

// deviating are the clauses that don't hold over a foreign execd, each with the
// deviation that it is a case of.
var deviating = map[string]string{
	"commands.line.large":       "large-line",
	"commands.timeout.bare":     "kill-by-environment",
	"processes.status":          "offsets-between-runs",
	"processes.outlives":        "offsets-between-runs",
	"processes.rerun":           "offsets-between-runs",
	"processes.rerun.offsets":   "offsets-between-runs",
	"processes.buffer.drop":     "offsets-between-runs",
	"processes.replay.channels": "replay-channels",
	"processes.replay.gap":      "buffer",
	"processes.buffer.block":    "no-block",
	"processes.buffer.ack":      "no-block",
	"processes.watch":           "no-watching",
	"processes.watch.sends":     "no-watching",
	"processes.watch.starts":    "no-watching",
	"processes.stdin.end":       "stdin-end",
	"processes.stdin.over":      "stdin-end",
	"processes.stdin.count":     "stdin-count",
	"processes.stdin.full":      "stdin-waits",
	"processes.stdin.control":   "stdin-waits",
}

// What every provider's sandboxes are held to, over an execd with all the
// faults that leave a way. The clauses on commands and processes, which take
// minutes, run when ASTRABOX_ENDURANCE is set.
func TestForeignConformance(t *testing.T) {
	// A run always begins with init, but for those of isolated sessions; without
	// it, what was given up can't be killed and leaves something for a while.
	b := foreign(t, slices.DeleteFunc(slices.Clone(quirk.Harmless), func(f quirk.Fault) bool { return f == quirk.NoInit })...)
	f, dir := b.files()
	for _, d := range []string{b.tmp, filepath.Dir(b.tmp)} { // another account works there too
		must(t, os.Chmod(d, 0o755))
	}
	box := conform.Box{Files: f, Commands: b.cmds, Scratch: dir + "/scratch", Account: someone}
	o := conform.Options{Timeout: 2 * time.Minute, Deviations: map[string]string{}}
	if os.Getenv("ASTRABOX_ENDURANCE") != "" {
		box.Processes = b.proc
	} else {
		o.Run = regexp.MustCompile(`^files\.`)
	}
	known := map[string]string{}
	for _, d := range execd.Deviations() {
		known[d.ID] = d.Says
	}
	for clause, id := range deviating {
		if known[id] == "" {
			t.Errorf("%s is said to deviate by %s, which isn't listed", clause, id)
		}
		o.Deviations[clause] = id + ": " + known[id]
	}
	sandboxtest.DataPlane(t, box, o)
}
