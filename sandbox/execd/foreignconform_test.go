package execd_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/astrabox/astrabox/sandbox/conform"
	"github.com/astrabox/astrabox/sandbox/execd/internal/quirk"
	"github.com/astrabox/astrabox/sandbox/sandboxtest"
)

// What every provider's sandboxes are held to, over an execd with all the
// faults that leave a way.
func TestForeignConformance(t *testing.T) {
	// A run always begins with init, but for those of isolated sessions; without
	// it, what was given up can't be killed and leaves something for a while.
	b := foreign(t, slices.DeleteFunc(slices.Clone(quirk.Harmless), func(f quirk.Fault) bool { return f == quirk.NoInit })...)
	f, dir := b.files()
	for _, d := range []string{b.tmp, filepath.Dir(b.tmp)} { // another account works there too
		must(t, os.Chmod(d, 0o755))
	}
	sandboxtest.DataPlane(t, conform.Box{Files: f, Commands: b.cmds, Processes: b.proc, Scratch: dir + "/scratch", Account: someone}, conform.Options{})
}
