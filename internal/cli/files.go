package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/astrabox/astrabox/internal/httpapi/wire"
)

const workspace = "/workspace"

// inWorkspace makes a path of the workspace absolute.
func inWorkspace(p string) string {
	if strings.HasPrefix(p, "/") {
		return p
	}
	return workspace + "/" + p
}

func (c *command) filesCommand() *cobra.Command {
	return group("files", "Files of a conversation's workspace", c.filesList(), c.filesGet(), c.filesArchive(), c.filesPut())
}

func (c *command) filesList() *cobra.Command {
	var depth int
	cmd := &cobra.Command{
		Use: "ls CONVERSATION [PATH]", Short: "List a folder", Args: nArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			dir := workspace
			if len(args) > 1 {
				dir = inWorkspace(args[1])
			}
			list, err := api.Files(cmd.Context(), args[0], dir, depth)
			if err != nil || c.json {
				return errors.Join(err, c.jsonIf(err == nil, list))
			}
			var rows [][]string
			for _, e := range list.Entries {
				name := strings.TrimPrefix(e.Path, strings.TrimSuffix(list.Path, "/")+"/")
				switch e.Type {
				case wire.TypeDirectory:
					name += "/"
				case wire.TypeSymlink:
					name += " -> " + e.Target
				}
				rows = append(rows, []string{e.Mode, e.Owner + ":" + e.Group, size(e.Size), e.ModifiedAt.Local().Format("2006-01-02 15:04"), name})
			}
			return c.table([]string{"MODE", "OWNER", "SIZE", "MODIFIED", "NAME"}, rows)
		},
	}
	cmd.Flags().IntVar(&depth, "depth", 1, "how many levels, 1 to 32")
	return cmd
}

func (c *command) filesGet() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use: "get CONVERSATION PATH [FILE]", Short: "Download a file (FILE \"-\": print it)", Args: nArgs(2, 3),
		Long: `Download a file of the workspace into FILE, by default one of the same name
here. FILE "-" prints it. A file that is there is kept unless --force is given;
it is replaced only when all of the new content has arrived.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			from := inWorkspace(args[1])
			to := path.Base(from)
			if len(args) > 2 {
				to = args[2]
			}
			if info, err := os.Stat(to); err == nil && info.IsDir() && to != "-" {
				to = filepath.Join(to, path.Base(from))
			}
			if _, err := os.Lstat(to); err == nil && !force && to != "-" {
				return fmt.Errorf("%s exists; give another name, or --force to replace it", to)
			}
			content, _, err := api.Download(cmd.Context(), args[0], from)
			if err != nil {
				return err
			}
			defer content.Close()
			if to == "-" {
				_, err = io.Copy(c.Stdout, content)
				return err
			}
			n, err := store(to, content)
			if err == nil {
				err = c.done(map[string]any{"path": from, "file": to, "size": n}, "%s: %d bytes to %s", from, n, to)
			}
			return err
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "replace a file that is there")
	return cmd
}

func (c *command) filesArchive() *cobra.Command {
	var force bool
	var format string
	cmd := &cobra.Command{
		Use: "archive CONVERSATION [PATH] [FILE]", Short: "Download a folder as one file (FILE \"-\": print it)", Args: nArgs(1, 3),
		Long: `Download a folder of the workspace, by default all of it, as a tar or zip into
FILE, by default named after the folder. FILE "-" prints it, so that
"astrabox files archive CONVERSATION src - --format tar | tar -x" unpacks it
here. A file that is there is kept unless --force is given; it is replaced only
when all of the archive has arrived.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			from := workspace
			if len(args) > 1 {
				from = inWorkspace(args[1])
			}
			to := path.Base(from) + "." + format
			if len(args) > 2 {
				to = args[2]
			}
			if info, err := os.Stat(to); err == nil && info.IsDir() && to != "-" {
				to = filepath.Join(to, path.Base(from)+"."+format)
			}
			if _, err := os.Lstat(to); err == nil && !force && to != "-" {
				return fmt.Errorf("%s exists; give another name, or --force to replace it", to)
			}
			archive, err := api.Archive(cmd.Context(), args[0], from, format)
			if err != nil {
				return err
			}
			defer archive.Close()
			if to == "-" {
				_, err = io.Copy(c.Stdout, archive)
				return err
			}
			n, err := store(to, archive)
			if err == nil {
				err = c.done(map[string]any{"path": from, "file": to, "size": n}, "%s: %d bytes to %s", from, n, to)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&format, "format", "tar.gz", "tar, tar.gz or zip")
	cmd.Flags().BoolVarP(&force, "force", "f", false, "replace a file that is there")
	return cmd
}

// done says what was done, as a line for people or as JSON.
func (c *command) done(v any, format string, args ...any) error {
	if c.json {
		return c.printJSON(v)
	}
	c.note(format, args...)
	return nil
}

// store writes a file in one step.
func store(name string, content io.Reader) (n int64, err error) {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-")
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name()) // of no effect after the rename
	n, err = io.Copy(f, content)
	if err = errors.Join(err, f.Close()); err != nil {
		return n, err
	}
	if err := os.Chmod(f.Name(), 0o644); err != nil {
		return n, err
	}
	return n, os.Rename(f.Name(), name)
}

func (c *command) filesPut() *cobra.Command {
	var version string
	var noReplace bool
	cmd := &cobra.Command{
		Use: "put CONVERSATION FILE [PATH]", Short: "Upload a file (FILE \"-\": standard input)", Args: nArgs(2, 3),
		Long: `Upload FILE into the workspace as PATH, by default under the same name. A PATH
that ends in "/" is a folder. FILE "-" is standard input and needs a PATH.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			if version != "" && noReplace {
				return usage("--if-version and --new exclude each other")
			}
			from, to := args[1], ""
			if len(args) > 2 {
				to = args[2]
			}
			switch {
			case from == "-" && (to == "" || strings.HasSuffix(to, "/")):
				return usage("standard input needs the PATH of a file")
			case to == "" || strings.HasSuffix(to, "/"):
				to += filepath.Base(from)
			}
			in := c.Stdin
			if from != "-" {
				f, err := os.Open(from)
				if err != nil {
					return err
				}
				defer f.Close()
				if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
					return errors.Join(err, &fs.PathError{Op: "upload", Path: from, Err: errors.New("not a regular file")})
				}
				in = f
			}
			e, err := api.Upload(cmd.Context(), args[0], inWorkspace(to), in, version, noReplace)
			if err != nil {
				return err
			}
			return c.done(e, "%s: %d bytes, mode %s, owner %s", e.Path, e.Size, e.Mode, e.Owner)
		},
	}
	cmd.Flags().StringVar(&version, "if-version", "", "write only over this version of the file (see files ls --json)")
	cmd.Flags().BoolVar(&noReplace, "new", false, "refuse when the file exists")
	return cmd
}
