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
	for _, d := range execd.Deviations() {
		for _, clause := range d.Clauses {
			o.Deviations[clause] = d.ID + ": " + d.Says
		}
	}
	sandboxtest.DataPlane(t, box, o)
}
