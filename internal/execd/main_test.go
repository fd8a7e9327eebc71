package execd_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/astrabox/astrabox/internal/execd"
	"github.com/astrabox/astrabox/internal/execd/child"
	"github.com/astrabox/astrabox/internal/execd/isolated"
	"github.com/astrabox/astrabox/test/machine"
)

func TestMain(m *testing.M) {
	if isolated.Inside() {
		os.Exit(execd.SessionMain(true))
	}
	machine.ReadOnly() // requests name paths and commands, and run as root
	if err := child.Prepare(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}
