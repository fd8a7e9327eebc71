# Makes the account ACCOUNT with its home and the directory WORKSPACE, for
# images that lack them, and prints the mark of the Agent program's binary.
# POSIX sh and mkdir, chown, chmod, wc only: an image may have no useradd.
set -eu
umask 022

# read fails on a last line without an end, and yet gives its words.
uids=" " gids=" " home= uid= gid= group= cut=
while IFS=: read -r n x u g gecos h s || { [ -n "$n" ] && cut=1; }; do
  uids="$uids$u "
  if [ "$n" = "$ACCOUNT" ]; then home=$h uid=$u gid=$g; fi
done </etc/passwd
if [ -n "$cut" ]; then echo >>/etc/passwd; fi
cut=
while IFS=: read -r n x g members || { [ -n "$n" ] && cut=1; }; do
  gids="$gids$g "
  if [ "$n" = "$ACCOUNT" ]; then group=$g; fi
done </etc/group
if [ -n "$cut" ]; then echo >>/etc/group; fi

if [ -z "$uid" ]; then
  id=1000
  while :; do
    case "$uids$gids" in *" $id "*) id=$((id + 1)) ;; *) break ;; esac
  done
  shell=/bin/sh
  if [ -x /bin/bash ]; then shell=/bin/bash; fi
  if [ -z "$group" ]; then
    echo "$ACCOUNT:x:$id:" >>/etc/group
    group=$id
  fi
  uid=$id gid=$group home=/home/$ACCOUNT
  echo "$ACCOUNT:x:$uid:$gid:$ACCOUNT:$home:$shell" >>/etc/passwd
fi
if [ ! -d "$home" ]; then
  mkdir -p "$home"
  chown "$uid:$gid" "$home"
  chmod 0750 "$home"
fi
if [ -n "${FRESH:-}" ] || [ ! -d "$WORKSPACE" ]; then
  mkdir -p "$WORKSPACE"
  chown "$uid:$gid" "$WORKSPACE"
  chmod 0750 "$WORKSPACE"
fi
if [ -n "${BINARY:-}" ]; then
  mkdir -p "${BINARY%/*}"
  if [ -x "$BINARY" ] && [ -r "$MARK" ]; then
    read -r sum <"$MARK" || :
    size=$(wc -c <"$BINARY")
    echo "${sum%% *} $((size))"
  fi
fi
