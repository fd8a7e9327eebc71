package execd_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/astrabox/astrabox/internal/execd/child"
	"github.com/astrabox/astrabox/test/machine"
)

func TestMain(m *testing.M) {
	machine.ReadOnly() // requests name paths and commands, and run as root
	if err := child.Prepare(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}
