package bench

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd"
)

const (
	archiveFiles  = 10_000
	archiveFolder = 100 // files of one directory
	archiveBytes  = 1 << 30
)

// archives measures a tree of a gibibyte as a tar beside tar(1), which writes
// into a pipe.
func archives(ctx context.Context, o Options, d *daemon) ([]Result, error) {
	tree := filepath.Join(d.dir, "tree")
	content := make([]byte, archiveBytes/archiveFiles)
	for i := range content {
		content[i] = byte(i * 7)
	}
	for i := range archiveFiles {
		dir := filepath.Join(tree, fmt.Sprintf("d%03d", i/archiveFolder))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("file%05d", i)), content, 0o644); err != nil {
			return nil, err
		}
	}
	files := execd.Files(d.conn)
	values, floors, err := inTurns(max(o.N/4, 3), func() (time.Duration, error) {
		return timeOf(func() error {
			r, err := sandbox.Archive(ctx, files, tree, sandbox.ArchiveTar)
			if err != nil {
				return err
			}
			defer r.Close()
			return archived(r)
		})
	}, func() (time.Duration, error) {
		return timeOf(func() error {
			cmd := exec.CommandContext(ctx, "tar", "-cf", "-", "-C", tree, ".")
			out, err := cmd.StdoutPipe()
			if err != nil {
				return err
			}
			if err := cmd.Start(); err != nil {
				return err
			}
			if err := archived(out); err != nil {
				return err
			}
			return cmd.Wait()
		})
	})
	if err != nil {
		return nil, err
	}
	const mb = archiveBytes / 1e6
	memory, err := filesMemory("rss_tar_1g", d)
	return append(memory, measured("tar_1g", "MB/s", "<= 1.25 x", perSecond(mb, values), "tar(1)", perSecond(mb, floors))), err
}

// archived reads an archive to its end, which must hold all content.
func archived(r io.Reader) error {
	n, err := io.Copy(io.Discard, r)
	if err == nil && n < archiveBytes/archiveFiles*archiveFiles {
		err = fmt.Errorf("bench: an archive of %d bytes", n)
	}
	return err
}

// filesMemory is the most that was resident of a daemon since its start.
func filesMemory(name string, d *daemon) ([]Result, error) {
	n, err := statusBytes(d.cmd.Process.Pid, "VmHWM")
	if err != nil {
		return nil, err
	}
	return []Result{measured(name, "MiB", "<= 40 MiB", []float64{float64(n) / (1 << 20)}, "", nil)}, nil
}
