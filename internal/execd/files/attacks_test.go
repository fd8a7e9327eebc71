package files_test

import (
	"os"
	"time"
)

// attackTime is how long one attack goes on: a moment, or as many seconds as
// ASTRABOX_ATTACK_SECONDS says.
func attackTime() time.Duration {
	if d, err := time.ParseDuration(os.Getenv("ASTRABOX_ATTACK_SECONDS") + "s"); err == nil && d > 0 {
		return d
	}
	return 300 * time.Millisecond
}
