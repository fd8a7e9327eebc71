package execd_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/astrabox/astrabox/internal/execd/child"
)

func TestMain(m *testing.M) {
	if err := child.Prepare(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}
