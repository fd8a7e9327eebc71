package files

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

const (
	// removeDepth is how many directories a removal holds open. What lies
	// deeper is first moved up into the top of the tree that goes away.
	removeDepth = 64
	// removeRounds bounds how often a directory that others keep filling is
	// emptied again.
	removeRounds = 16
)

// removeTree removes base in dir with all below it. It follows no link and
// goes on after a failure, whose first it returns.
func removeTree(ctx context.Context, dir int, base string) error {
	err := unlink(dir, base)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) {
		return err
	}
	r := &remover{ctx: ctx, top: -1}
	return r.directory(dir, base, 0)
}

type remover struct {
	ctx   context.Context // of the one request that this value serves
	top   int
	moved int
}

func (r *remover) directory(dir int, base string, depth int) error {
	fd, err := openat(dir, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR): // it was replaced meanwhile
		return unlink(dir, base)
	case err != nil:
		return err
	}
	f := os.NewFile(uintptr(fd), "tree")
	defer f.Close()
	if r.top < 0 {
		r.top = fd
	}
	var first error
	for round := 0; round < removeRounds; round++ {
		moved := r.moved
		if first, err = r.empty(f, fd, depth); err != nil {
			return err
		}
		if r.moved > moved { // deep directories that came up are progress
			round = 0
		}
		err = unix.Unlinkat(dir, base, unix.AT_REMOVEDIR)
		switch {
		case err == nil, errors.Is(err, unix.ENOENT):
			return nil
		case first != nil:
			return first
		case !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST):
			return err
		}
	}
	return err
}

// empty removes what a directory holds now. first is the first entry's failure;
// err ends the whole removal.
func (r *remover) empty(f *os.File, fd, depth int) (first, err error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	for {
		names, err := f.Readdirnames(512)
		for _, name := range names {
			if err := r.ctx.Err(); err != nil {
				return nil, err
			}
			if err := r.entry(fd, name, depth); err != nil && first == nil {
				first = err
			}
		}
		if err == io.EOF || len(names) == 0 {
			return first, nil
		}
		if err != nil {
			return first, err
		}
	}
}

func (r *remover) entry(dir int, name string, depth int) error {
	err := unlink(dir, name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) {
		return err
	}
	if depth < removeDepth {
		return r.directory(dir, name, depth+1)
	}
	// The top is read again until it is empty, so this comes back at depth 1.
	r.moved++
	return unix.Renameat(dir, name, r.top, ".astrabox-"+rand.Text()+".removed")
}
