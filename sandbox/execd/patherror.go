package execd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"syscall"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// fileCause is what the daemon said about a file. errors.Is finds the system's
// error of its kind, and with it fs.ErrExist and fs.ErrPermission.
type fileCause struct {
	code, message string
	errno         syscall.Errno
}

func (c *fileCause) Error() string { return c.message }

func (c *fileCause) Unwrap() error { return c.errno }

var errnoOf = map[string]syscall.Errno{
	wire.CodeFileExists:       syscall.EEXIST,
	wire.CodePathInvalid:      syscall.EINVAL,
	wire.CodePathEscapes:      syscall.EPERM,
	wire.CodeNotADirectory:    syscall.ENOTDIR,
	wire.CodeIsADirectory:     syscall.EISDIR,
	wire.CodeNotRegular:       syscall.ENODEV,
	wire.CodeNotEmpty:         syscall.ENOTEMPTY,
	wire.CodeCrossDevice:      syscall.EXDEV,
	wire.CodePermissionDenied: syscall.EACCES,
	wire.CodeNoSpace:          syscall.ENOSPC,
	wire.CodeUnknownAccount:   syscall.EINVAL,
	wire.CodeFileError:        syscall.EIO,
}

func rejected(code, message string) error {
	return fmt.Errorf("%w: %w", sandbox.ErrPathRejected, &fileCause{code, message, errnoOf[code]})
}

// causeOf classifies what the daemon said.
func causeOf(e *wire.FileError) error {
	if e.Code == wire.CodeFileNotFound {
		return sandbox.ErrPathNotFound
	}
	if e.Code == wire.CodeFileChanged {
		return fmt.Errorf("%w: %w", sandbox.ErrPathRejected, sandbox.ErrChanged)
	}
	if e.Code == wire.CodeFileLimit {
		return fmt.Errorf("%w: %s", sandbox.ErrLimit, e.Message)
	}
	if _, known := errnoOf[e.Code]; known {
		return rejected(e.Code, e.Message)
	}
	return fmt.Errorf("%w: the daemon answered %s: %s", sandbox.ErrUnreachable, e.Code, e.Message)
}

// pathError names operation and path, and makes sure that the error is of a
// kind that the seam knows.
func pathError(ctx context.Context, op, path string, err error) error {
	if err == nil {
		return nil
	}
	var no *refusal
	switch {
	case errors.As(err, &no):
		var e wire.FileError
		if json.Unmarshal(no.body, &e) != nil || e.Code == "" {
			err = fmt.Errorf("%w: the daemon answered %d and doesn't know the request", sandbox.ErrUnreachable, no.status)
			break
		}
		if named := wire.JoinText(e.Path, e.PathB64); named != "" {
			path = named
		}
		err = causeOf(&e)
	case errors.Is(err, sandbox.ErrPathNotFound), errors.Is(err, sandbox.ErrPathRejected), errors.Is(err, sandbox.ErrUnreachable):
	case ctx.Err() != nil:
		err = ctx.Err()
	default:
		var said *sandbox.Error // such as a sandbox that isn't there, said by the resolver
		if errors.As(err, &said) {
			err = fmt.Errorf("%w: %w", sandbox.ErrUnreachable, said)
		} else {
			err = lost(err)
		}
	}
	return &sandbox.PathError{Op: op, Path: path, Err: err}
}
