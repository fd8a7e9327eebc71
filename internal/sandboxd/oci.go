package sandboxd

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/astrabox/astrabox/internal/sandboxd/runtime"
	"github.com/astrabox/astrabox/internal/sandboxd/runtime/oci"
)

// openOCI makes the runtime that runs sandboxes with runc.
func openOCI(ctx context.Context, cfg Config, inst string, log *slog.Logger) (runtime.Runtime, error) {
	runc, err := program(cfg.RuncPath, "ASTRABOX_RUNC_PATH", "runc")
	if err != nil {
		return nil, err
	}
	execd, err := program(cfg.ExecdPath, "ASTRABOX_EXECD_PATH", "execd")
	if err != nil {
		return nil, err
	}
	runDir := cfg.RunDir
	if runDir == "" {
		runDir = "/run/astrabox"
	}
	return oci.New(ctx, oci.Config{
		StateDir: filepath.Join(Dir(cfg.StateDir), "runtime"), RunDir: filepath.Join(runDir, inst), Inst6: inst,
		RuncPath: runc, ExecdPath: execd, Log: log,
	})
}

// program finds a program of ours: as configured, else as the environment
// says, else beside this executable.
func program(configured, variable, name string) (string, error) {
	path := configured
	if path == "" {
		path = os.Getenv(variable)
	}
	if path == "" {
		self, err := os.Executable()
		if err != nil {
			return "", fmt.Errorf("find %s: %w", name, err)
		}
		path = filepath.Join(filepath.Dir(self), name)
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%s is missing (set %s, or put it beside this program): %w", name, variable, err)
	}
	return filepath.Abs(path)
}
