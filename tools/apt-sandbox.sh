# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by the fetch scripts: an apt of its own inside a folder, so that packages of another suite or architecture
# can be downloaded and unpacked while nothing is installed and the machine's package state stays as it is.

die() {
  echo "${0##*/}: $*" >&2
  exit 1
}

# Ends the script unless the programs that every fetch needs are there.
require_apt() {
  local tool
  for tool in apt-get dpkg awk; do
    command -v "$tool" >/dev/null || die "needs $tool: this works on Debian and its derivatives only"
  done
}

# Prints the URI of the machine's own Debian archive. Third-party sources beside it are told apart by their components.
debian_mirror() {
  local uri
  uri=$(apt-get indextargets --format '$(COMPONENT) $(LABEL) $(ORIGIN) $(REPO_URI)' 2>/dev/null |
    awk '$1 == "main" && $0 ~ / Debian Debian / {print $NF; exit}')
  [ -n "$uri" ] || uri=$(cat /etc/apt/sources.list.d/debian.sources 2>/dev/null | awk '/^URIs:/ {print $2; exit}')
  [ -n "$uri" ] || uri=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null |
    awk '$1 == "deb" && / main/ {for (i = 2; i <= NF; i++) if ($i ~ /^[a-z+]+:\//) {print $i; exit}}')
  [ -n "$uri" ] || die "no Debian archive found in the apt sources of this machine"
  echo "$uri"
}

# sandbox_open ROOT SUITE ARCH: makes ROOT/apt and points apt-get at it through APT_CONFIG.
sandbox_open() {
  local apt=$1/apt suite=$2 arch=$3 mirror keyring options=
  mirror=$(debian_mirror)
  keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  [ ! -e "$keyring" ] || options="[signed-by=$keyring] "
  mkdir -p "$apt"/{lists/partial,cache/archives/partial,debs}
  : > "$apt/status"
  echo "deb $options$mirror $suite main" > "$apt/sources.list"
  cat > "$apt/apt.conf" <<CONF
Dir::Etc::sourcelist "$apt/sources.list";
Dir::Etc::sourceparts "-";
Dir::State::lists "$apt/lists";
Dir::State::status "$apt/status";
Dir::Cache "$apt/cache";
APT::Architecture "$arch";
APT::Architectures { "$arch"; };
APT::Install-Recommends "false";
APT::Sandbox::User "";
Acquire::Check-Valid-Until "false"; # snapshots of an archive have expired
Acquire::Retries "3";
Acquire::Languages "none";
CONF
  export APT_CONFIG=$apt/apt.conf
  read_package_lists "$apt" || {
    sandbox_close "$1"
    die "cannot read the package lists of $suite ($arch) from $mirror"
  }
}

# read_package_lists APT: tries again after a while, and past caches, since a mirror is not whole while it is updated.
read_package_lists() {
  local pause options=()
  for pause in ${LIST_PAUSES-5 30} ''; do
    ! apt-get -qq -o APT::Update::Error-Mode=any "${options[@]}" update || return 0
    [ -n "$pause" ] || return 1
    rm -rf "$1"/lists
    mkdir -p "$1"/lists/partial
    options=(-o Acquire::http::No-Cache=true)
    sleep "$pause"
  done
}

# sandbox_unpack ROOT DESTINATION PACKAGE...: downloads exactly these packages and unpacks them.
sandbox_unpack() {
  local debs=$1/apt/debs
  (cd "$debs" && apt-get -qq download "${@:3}") || die "a package of this list cannot be had: ${*:3}"
  unpack_debs "$debs" "$2"
}

# sandbox_unpack_any ROOT DESTINATION PACKAGE...: the same with those of the packages that the archive gives; it may lack
# some for a while after a release. Fails if it lacks any.
sandbox_unpack_any() {
  local debs=$1/apt/debs package missing=()
  if ! (cd "$debs" && apt-get -qq download "${@:3}") 2>/dev/null; then
    for package in "${@:3}"; do
      (cd "$debs" && apt-get -qq download "$package") 2>/dev/null || missing+=("$package")
    done
  fi
  unpack_debs "$debs" "$2"
  [ ${#missing[@]} -eq 0 ] || { echo "${0##*/}: the archive lacks ${missing[*]}" >&2 && return 1; }
}

# unpack_debs FOLDER DESTINATION
unpack_debs() {
  local deb
  mkdir -p "$2"
  for deb in "$1"/*.deb; do [ ! -e "$deb" ] || dpkg -x "$deb" "$2"; done
}

# sandbox_close ROOT: forgets the sandbox with everything it downloaded.
sandbox_close() {
  unset APT_CONFIG
  rm -rf "$1/apt"
}

# keep_binaries ROOT MAGIC...: removes the files that start with none of the magic strings, and counts what stays.
keep_binaries() {
  local root=$1 LC_ALL=C file start magic keep
  shift
  find "$root" -type f -print0 |
    while IFS= read -r -d '' file; do
      start=
      IFS= read -r -N 8 start < "$file" || true
      keep=
      for magic in "$@"; do [[ $start != "$magic"* ]] || keep=1; done
      [ -n "$keep" ] || printf '%s\0' "$file"
    done |
    xargs -0r rm -f
  find "$root" -xtype l -delete
  find "$root" -type d -empty -delete
  find "$root" -type f | wc -l
}
