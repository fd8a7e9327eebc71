package files

import (
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// sweepAge is how old a hidden file is that can't belong to a write that is
	// under way: another daemon may share the directory.
	sweepAge = 24 * time.Hour
	// sweepPause is how often at most a directory is looked through.
	sweepPause = 10 * time.Minute
)

// sweep removes what a daemon that was killed left in dir, where the file
// system has no files without a name: elsewhere nothing is ever left.
func (s *service) sweep(dir int) {
	now := time.Now().Unix()
	last := s.swept.Load()
	if now-last < int64(sweepPause/time.Second) || !s.swept.CompareAndSwap(last, now) {
		return
	}
	fd, err := openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK)
	if err != nil {
		return
	}
	f := os.NewFile(uintptr(fd), "dir")
	defer f.Close()
	for {
		names, err := f.Readdirnames(512)
		for _, name := range names {
			if _, ours := s.hidden.Load(name); ours || !hiddenName(name) {
				continue
			}
			var st unix.Stat_t
			if fstatat(fd, name, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && now-st.Mtim.Sec > int64(sweepAge/time.Second) {
				unix.Unlinkat(fd, name, 0) //nolint:errcheck // it is tried again another day
			}
		}
		if errors.Is(err, io.EOF) || len(names) == 0 {
			return
		}
	}
}
