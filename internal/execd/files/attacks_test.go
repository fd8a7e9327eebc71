package files_test

import (
	"os"
	"syscall"
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

// attacking says whether to go on: for that time, and longer on a busy machine
// while nothing has been tried yet.
func attacking() func(tried bool) bool {
	begin := time.Now()
	return func(tried bool) bool {
		past := time.Since(begin) - attackTime()
		return past < 0 || !tried && past < 20*time.Second
	}
}

func owner(i os.FileInfo) int { return int(i.Sys().(*syscall.Stat_t).Uid) }
