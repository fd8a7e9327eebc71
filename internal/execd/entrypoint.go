package execd

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/astrabox/astrabox/internal/execd/account"
	"github.com/astrabox/astrabox/internal/execd/child"
	"github.com/astrabox/astrabox/internal/execd/hang"
	"github.com/astrabox/astrabox/internal/execd/launch"
)

// startEntrypoint starts args with the daemon's standard descriptors, working
// directory, account and environment, without what is the daemon's alone.
func startEntrypoint(r *child.Reaper, args []string) (*child.Child, error) {
	dir, err := os.Getwd()
	if err != nil {
		dir = "/"
	}
	path, err := hang.Do(context.Background(), func() (string, error) {
		path, err := lookPath(args[0])
		if err == nil {
			hang.Program(path, dir)
		}
		return path, err
	}, nil)
	if err != nil {
		return nil, err
	}
	return r.Start(child.Spec{
		Path: path, Args: args, Dir: dir, Files: []int{0, 1, 2},
		Env: launch.Environment(account.System, nil, nil, nil),
	})
}

// lookPath is exec.LookPath; package os/exec must stay out of the daemon (see
// package child).
func lookPath(name string) (string, error) {
	dirs := []string{""}
	if !strings.Contains(name, "/") {
		dirs = filepath.SplitList(os.Getenv("PATH"))
		if len(dirs) == 0 {
			dirs = filepath.SplitList(launch.DefaultPath)
		}
	}
	err := error(&os.PathError{Op: "exec", Path: name, Err: os.ErrNotExist})
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		switch fi, statErr := os.Stat(path); {
		case statErr != nil:
		case fi.IsDir() || fi.Mode().Perm()&0o111 == 0:
			err = &os.PathError{Op: "exec", Path: path, Err: os.ErrPermission}
		default:
			return path, nil
		}
	}
	return "", err
}
