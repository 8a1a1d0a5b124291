"""Peak memory of a program, by GNU time: what a child of this process uses is never told to be less than this process did."""


def watched(command, file):
    """The command, as to be run; its peak memory is in the file when it has ended."""
    return ["/usr/bin/time", "-f", "%M", "-o", file.name, *(str(part) for part in command)]


def megabytes(file):
    return int(file.read()) / 1024
